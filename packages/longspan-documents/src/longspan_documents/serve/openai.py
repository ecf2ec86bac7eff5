"""Endpoints below /v1/ in the formats of other vendors' clients: embeddings as OpenAI's, reranking as Jina's."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Request

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan_documents.serve.jobs import Jobs
from longspan_documents.serve.limits import Limits, check_count
from longspan_documents.serve.problems import BODY, WORK, declared
from longspan_documents.serve.requests import (
    Embeddings,
    EmbeddingsRequest,
    Model,
    ModelList,
    OpenAIProblem,
    Reranking,
    RerankRequest,
)
from longspan_documents.serve.results import begin

MODEL = {"id": "longspan", "object": "model", "created": 0, "owned_by": "longspan"}


def add_openai(app: FastAPI, jobs: Jobs, limits: Limits, *, reranks: bool) -> None:
    """Add the endpoints to an application; `reranks` if the workers have a reranker."""
    work = declared(OpenAIProblem, *(status for status in WORK if status != 404))

    @app.get("/v1/models", tags=["as OpenAI"], response_model=ModelList, responses=declared(OpenAIProblem))
    async def models() -> Any:
        """The list of the server's only model."""
        return {"object": "list", "data": [MODEL]}

    @app.get(
        "/v1/models/{name:path}", tags=["as OpenAI"], response_model=Model, responses=declared(OpenAIProblem, 404, 422)
    )
    async def model(name: str) -> Any:
        """The server's model under any name."""
        if name != MODEL["id"]:
            raise HTTPException(404, f"there is no model {on_one_line(name)[:60]!r}; there is {MODEL['id']!r}")
        return MODEL

    @app.post("/v1/embeddings", tags=["as OpenAI"], response_model=Embeddings, responses=work)
    async def embeddings(request: Request, body: EmbeddingsRequest) -> Any:
        """Vectors of texts, in the format of OpenAI's API. The server's encoder is used, whichever model is named."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        if not texts:
            raise InputError("input=[] holds no text; give one")
        check_count(len(texts), limits.texts, "input")
        arguments = {"texts": texts, "encoding_format": body.encoding_format, "dimensions": body.dimensions}
        return await begin(request, jobs, "embeddings", arguments, sum(map(len, texts)))

    @app.post(
        "/v1/rerank", tags=["as OpenAI"], response_model=Reranking, responses=work | declared(OpenAIProblem, *BODY, 404)
    )
    async def rerank(request: Request, body: RerankRequest) -> Any:
        """Texts ordered by relevance to a question, in the format of Jina's and Cohere's APIs."""
        if not reranks:
            raise HTTPException(404, "this server has no reranker; start it with `longspan serve --reranker DIR`")
        texts = [document if isinstance(document, str) else document.text for document in body.documents]
        if not texts:
            raise InputError("documents=[] holds no text; give one")
        check_count(len(texts), limits.texts, "documents")
        arguments = {"query": body.query, "texts": texts, "top": body.top_n, "texts_too": body.return_documents}
        characters = sum(map(len, texts)) + len(texts) * len(body.query)
        return await begin(request, jobs, "rerank", arguments, characters)
