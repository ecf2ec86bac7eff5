"""`longspan serve`: a page on this machine to read documents in, and the same as a JSON API.

`app` has the addresses, `openai` those that others defined, and `limits` who may ask how much. The work itself is done
by processes of their own (`worker`, from the server's side `process`), which `jobs` feeds from a queue, so that a
request can be cancelled, and neither its time nor its memory stops the page. `library` holds what was uploaded, until
the server ends. The page is plain files in `static/`.
"""
