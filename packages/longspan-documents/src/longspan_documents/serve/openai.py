"""Addresses below /v1/ as clients of others know them: embeddings as OpenAI gives them, reranking as Jina does."""

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
    """Add them to an application; `reranks` where the workers have a reranker."""
    work = declared(OpenAIProblem, *(status for status in WORK if status != 404))

    @app.get("/v1/models", tags=["as OpenAI"], response_model=ModelList, responses=declared(OpenAIProblem))
    async def models() -> Any:
        """The one model that there is."""
        return {"object": "list", "data": [MODEL]}

    @app.get(
        "/v1/models/{name:path}", tags=["as OpenAI"], response_model=Model, responses=declared(OpenAIProblem, 404, 422)
    )
    async def model(name: str) -> Any:
        """A model by its name."""
        if name != MODEL["id"]:
            raise HTTPException(404, f"there is no model {on_one_line(name)[:60]!r}; there is {MODEL['id']!r}")
        return MODEL

    @app.post("/v1/embeddings", tags=["as OpenAI"], response_model=Embeddings, responses=work)
    async def embeddings(request: Request, given: EmbeddingsRequest) -> Any:
        """Vectors of texts, in the shape of OpenAI's API. Whatever model is named, the server's encoder answers."""
        texts = [given.input] if isinstance(given.input, str) else given.input
        if not texts:
            raise InputError("input=[] holds no text; give one")
        check_count(len(texts), limits.texts, "input")
        arguments = {"texts": texts, "encoding_format": given.encoding_format, "dimensions": given.dimensions}
        return await begin(request, jobs, "embeddings", arguments, sum(map(len, texts)))

    @app.post(
        "/v1/rerank", tags=["as OpenAI"], response_model=Reranking, responses=work | declared(OpenAIProblem, *BODY, 404)
    )
    async def rerank(request: Request, given: RerankRequest) -> Any:
        """Texts in the order in which they answer a question, in the shape of Jina's and Cohere's APIs."""
        if not reranks:
            raise HTTPException(404, "this server has no reranker; start it with `longspan serve --reranker DIR`")
        texts = [one if isinstance(one, str) else one.text for one in given.documents]
        if not texts:
            raise InputError("documents=[] holds no text; give one")
        check_count(len(texts), limits.texts, "documents")
        arguments = {"query": given.query, "texts": texts, "top": given.top_n, "texts_too": given.return_documents}
        characters = sum(map(len, texts)) + len(texts) * len(given.query)
        return await begin(request, jobs, "rerank", arguments, characters)
