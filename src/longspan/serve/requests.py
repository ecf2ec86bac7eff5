"""What requests and answers hold; FastAPI checks the requests, and describes both in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Field(default=None, min_length=1, description="The text itself, in place of an uploaded document.")


class Given(BaseModel):
    """The base of all: unknown keys are refused, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid")


class SummaryRequest(Given):
    """One document or text, and how long its summary is to be: in one of three ways, else medium."""

    document: str | None = Field(default=None, description="Id of an uploaded document.")
    text: str | None = Text
    sentences: int | None = Field(default=None, ge=1, le=100_000, description="Number of sentences.")
    words: int | None = Field(default=None, ge=1, le=10_000_000, description="Number of words, about.")
    length: Literal["short", "medium", "long"] | None = None
    query: str | None = Field(default=None, max_length=2_000, description="What the summary is to be about.")
    scores: bool = Field(default=False, description="Add the score of every sentence, by where it begins.")


class AnswerRequest(Given):
    """Documents or a text, and one or several questions."""

    documents: list[str] = Field(default=[], max_length=1_000, description="Ids of uploaded documents.")
    text: str | None = Text
    question: str | list[str] = Field(description="One question, or several.")
    top: int = Field(default=3, ge=1, le=100, description="Passages to give.")
    threshold: float | None = Field(default=None, ge=0, le=1, description='Probability below which "no" is said.')


class EmbedRequest(Given):
    """Loose texts, or documents that are read whole."""

    texts: list[str] = Field(default=[], max_length=10_000, description="Loose texts, each read by itself.")
    documents: list[str] = Field(default=[], max_length=1_000, description="Ids of uploaded documents.")
    sentences: bool = Field(default=False, description="Vectors of the sentences of documents too.")


class EmbeddingsRequest(BaseModel):
    """What clients of OpenAI's `/v1/embeddings` send; lists of token numbers are refused."""

    input: str | list[str]
    model: str = "longspan"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    user: Any = None


class Uploaded(BaseModel):
    """A document that was uploaded and read."""

    id: str
    name: str
    title: str | None
    characters: int
    words: int
    sentences: int
    pages: int | None
    notes: list[str]


class Answered(BaseModel):
    """What documents hold on one question."""

    question: str
    answered: bool = Field(description="Whether an answer may be there.")
    sure: Literal["likely", "unsure", "probably not there"] = Field(description="How sure that is, in words.")
    probability: float = Field(description="That one of the three best passages holds an answer.")
    likely: float = Field(description="The probability from which on an answer is said to be likely.")
    passages: list[dict[str, Any]] = Field(description="Those most likely to hold it, best first, with their places.")
    short: dict[str, Any] | None
    searched: int = Field(description="How many passages competed.")
    seconds: float
    notes: list[str]


class JobState(BaseModel):
    """Where a job is; `result` is what the request would have answered."""

    job: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    progress: float
    doing: str
    ahead: int
    error: str | None = None
    result: Any = None
