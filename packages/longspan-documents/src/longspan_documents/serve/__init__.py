"""`longspan serve`: a local web page for reading documents, and the same functions as a JSON API.

`app` defines the endpoints, `openai` those of other vendors' APIs, and `limits` checks access and sizes. The work is
done by separate processes (`worker`), to which `jobs` assigns queued jobs, so that a request can be cancelled, and its
time and memory do not affect the page. `library` stores uploads until the server ends. The page is plain files in
`static/`.
"""
