"""`longspan serve`."""

from typing import Annotated

import typer

from longspan.cli.options import words_in
from longspan.cli.terminal import say
from longspan.options import Computing
from longspan_documents.cli.documents import Abbreviations, Encoder, Ocr, Reranker, what_is_read

epilog = what_is_read


def serve(
    host: Annotated[str, typer.Option(help="Name or address to listen on; 0.0.0.0 is every one of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LONGSPAN_TOKEN",
            help="What visitors have to know.",
            show_default="none on this machine, else one made up",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further host name that requests may name, such as a proxy's; may be repeated."),
    ] = None,
    megabytes: Annotated[int, typer.Option(min=1, max=256, help="Largest file, in MiB.")] = 50,
    seconds: Annotated[float, typer.Option(min=1, help="Longest time for one request, once it runs.")] = 600,
    memory: Annotated[int, typer.Option(min=64, help="Most memory that one request takes, in MiB (Linux).")] = 4096,
    queue: Annotated[int, typer.Option(min=1, max=10_000, help="Requests that may wait.")] = 64,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes for what is long; one more has what is short.")
    ] = 1,
    encoder: Encoder = None,
    reranker: Reranker = None,
    *,
    computing: Computing,
    abbreviations: Abbreviations = None,
    ocr: Ocr = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a local page for reading documents, with summaries next to them and answers highlighted in place.

    Drop files or a folder on the page. Nothing leaves this machine, and what was uploaded is deleted at the end
    (control-C). Only this machine can reach the page, unless `--host` is set; then a token is required, which the
    printed address contains. There is also a JSON API, described at `/docs`: `/summarize`, `/answer`, `/embed`, and
    `/v1/embeddings` in OpenAI's format; `/v1/rerank` with `--reranker`.

    `--encoder` and `--reranker` replace the bundled encoder for questions and passages, as in `longspan answer`; the
    encoder also computes the vectors of `/embed`. The words of `--abbreviations` do not end sentences; the file is read
    once, when the server starts.

    Examples: `longspan serve --open`, `longspan serve --port 0`, `longspan serve --host 0.0.0.0 --workers 4`.
    """
    from longspan_documents.serve.jobs import Models
    from longspan_documents.serve.limits import MEBIBYTE, Limits
    from longspan_documents.serve.server import serve as run

    further = () if abbreviations is None else tuple(words_in(abbreviations, "abbreviations"))
    limits = Limits(
        file_bytes=megabytes * MEBIBYTE, seconds=seconds, memory=memory * MEBIBYTE, queue=queue, workers=workers
    )

    def started(address: str) -> None:
        import sys
        import webbrowser

        say(f"Longspan is at {address} (control-C ends it, and deletes what was uploaded)")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(address)

    try:
        run(
            host=host,
            port=port,
            token=token,
            names=allow_host or (),
            limits=limits,
            models=Models(
                encoder=encoder,
                reranker=reranker,
                device=computing.device,
                dtype=computing.dtype,
                abbreviations=further,
                ocr=ocr,
            ),
            started=started,
        )
    except KeyboardInterrupt:  # the usual way to stop it
        say()
