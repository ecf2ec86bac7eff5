"""What requests and answers hold; FastAPI checks the requests, and describes both in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    create_model,
    model_validator,
)

from longspan.characters import mend, mended_note
from longspan.errors import InputError
from longspan.options import Field as OptionField
from longspan.options import Options, fields_of, options_from, without_limits
from longspan.settings import LARGEST
from longspan_documents.inference.verbs import Answer, Chunks, Embed, Summarize


def _mended(text: Any) -> Any:
    return mend(text)[0] if isinstance(text, str) else text


LooseText = Annotated[str, BeforeValidator(_mended)]
"""A text that is read; half characters, which JSON can hold and no tokenizer can take, become U+FFFD."""


class Given(BaseModel):
    """The base of all: unknown keys are refused, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid")


class GivenText(Given):
    """The base of those that may hold a text in place of uploaded documents."""

    text: str | None = Field(
        default=None, min_length=1, description="The text itself, in place of an uploaded document."
    )
    _halves: int = PrivateAttr(default=0)

    @model_validator(mode="wrap")
    @classmethod
    def _mend(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        halves = 0
        if isinstance(data, dict) and isinstance(text := data.get("text"), str):
            text, halves = mend(text)
            data = {**data, "text": text}
        made = handler(data)
        made._halves = halves
        return made

    @property
    def source(self) -> dict[str, Any]:
        """The text, as a worker is given it."""
        notes = [mended_note(self._halves)] if self._halves else []
        return {"id": None, "name": "the text", "text": self.text, "notes": notes}


AnyRequest = TypeVar("AnyRequest", bound=BaseModel)
AnyOptions = TypeVar("AnyOptions", bound=Options)


def with_options(declared: type[Options]) -> Callable[[type[AnyRequest]], type[AnyRequest]]:
    """Give a request a field for each option that a verb declares for the API."""

    def decorate(request: type[AnyRequest]) -> type[AnyRequest]:
        made: dict[str, Any] = {one.name: _request_field(one) for one in fields_of(declared, "api")}
        return create_model(
            request.__name__, __base__=request, __module__=request.__module__, __doc__=request.__doc__, **made
        )

    return decorate


def _request_field(field: OptionField) -> tuple[Any, Any]:
    """The type of a field, and what pydantic knows of it."""
    kind, limits = without_limits(field.plain), field.option.api or field.limits
    bounds = {"ge": limits.minimum, "le": limits.maximum, "gt": limits.above, "lt": limits.below}
    if str in (kind, *get_args(kind)):
        bounds = {"min_length": limits.minimum, "max_length": limits.maximum}
    given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound not in (None, LARGEST)}
    return kind, Field(default=field.default, description=field.option.help, **given)


def options_in(request: BaseModel, declared: type[AnyOptions]) -> AnyOptions:
    """The options that a request holds, checked.

    Raises:
        InputError: one of them does not fit the others.
    """
    return options_from(declared, {one.name: getattr(request, one.name) for one in fields_of(declared, "api")}, "api")


@with_options(Summarize)
class SummaryRequest(GivenText):
    """One document or text, and how long its summary is to be: in one of three ways, else medium."""

    document: str | None = Field(default=None, description="Id of an uploaded document.")
    scores: bool = Field(default=False, description="Add the score of every sentence, by where it begins.")


@with_options(Answer)
class AnswerRequest(GivenText):
    """Documents or a text, and one or several questions."""

    documents: list[str] = Field(default=[], description="Ids of uploaded documents.")
    question: str | list[str] = Field(description="One question, or several.")


@with_options(Embed)
class EmbedRequest(Given):
    """Loose texts, or documents that are read whole."""

    texts: list[LooseText] = Field(default=[], description="Loose texts, each read by itself.")
    documents: list[str] = Field(default=[], description="Ids of uploaded documents.")


@with_options(Chunks)
class ChunksRequest(GivenText):
    """One document or text, to be cut into passages."""

    document: str | None = Field(default=None, description="Id of an uploaded document.")


def _no_tokens(given: Any) -> Any:
    """What `input` holds, if it is texts.

    Raises:
        InputError: it holds the numbers of tokens.
    """
    entries = given if isinstance(given, list) else []
    if any(isinstance(entry, int) or (isinstance(entry, list) and entry) for entry in entries):
        raise InputError(
            "input holds token numbers, and this server does not have the tokenizer that they are of; send texts (in "
            "LangChain, OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )
    return given


class EmbeddingsRequest(BaseModel):
    """What clients of OpenAI's `/v1/embeddings` send; lists of token numbers are refused."""

    input: Annotated[LooseText | list[LooseText], BeforeValidator(_no_tokens)] = Field(
        description="One text, or several."
    )
    model: str = Field(default="longspan", description="Any name; the server's encoder answers.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        default=None, ge=1, description="Vectors are cut to so many numbers and brought to length 1 again."
    )
    user: Any = None


class RerankDocument(BaseModel):
    """A document as Cohere's first clients send it."""

    text: LooseText


class RerankRequest(BaseModel):
    """What clients of the rerankers of Jina, Cohere and vLLM send."""

    query: LooseText = Field(min_length=1, description="The question.")
    documents: list[LooseText | RerankDocument] = Field(description="Texts, or objects with a `text`.")
    top_n: int | None = Field(default=None, ge=1, description="How many of the best to give; all of them unless said.")
    return_documents: bool = Field(default=False, description="Give the texts too.")
    model: str = Field(default="longspan", description="Any name; the server's reranker answers.")


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


class ShownBlock(BaseModel):
    """A block of a document to be shown."""

    kind: str
    level: int
    speaker: str | None
    start: int = Field(description="Where it begins in the document's text.")
    page: int | None
    runs: list[tuple[str, int | None]] = Field(
        description="Words, and the place of the sentence that they are; null between sentences."
    )


class Content(Uploaded):
    """A document as it was read."""

    blocks: list[ShownBlock]


class PickedSentence(BaseModel):
    """A sentence of a summary, with its place."""

    model_config = ConfigDict(extra="allow")

    text: str
    start: int
    end: int
    score: float
    first_line: int
    last_line: int
    page: int | None


class Summarized(BaseModel):
    """A summary: its sentences in the order of the document."""

    document: str | None
    name: str
    sentences: list[PickedSentence]
    of: int = Field(description="Sentences of the document.")
    tokens: int
    seconds: float
    notes: list[str]
    scores: list[tuple[int, float]] | None = Field(default=None, description="Where sentences begin, and their scores.")


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


class Chunked(BaseModel):
    """The passages of a document, in order."""

    document: str | None
    name: str
    passages: list[dict[str, Any]] = Field(description="Their texts, places, headings, speakers, words and tokens.")
    notes: list[str]


class EmbeddedTexts(BaseModel):
    """Vectors of loose texts."""

    vectors: list[list[float]]
    tokens: int


class EmbeddedSentence(BaseModel):
    """A sentence of a document, its place and its vector."""

    text: str
    start: int
    end: int
    vector: list[float]


class EmbeddedDocument(BaseModel):
    """The vector of a document, and those of its sentences where they were asked for."""

    document: str
    name: str
    tokens: int
    vector: list[float]
    sentences: list[EmbeddedSentence] | None = None


class Embedding(BaseModel):
    """A vector, as OpenAI gives it."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of them as float32, little-endian.")


class Usage(BaseModel):
    """How many tokens were read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Vectors, as OpenAI gives them."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class RerankedText(BaseModel):
    """A document that was reranked."""

    text: str


class Reranked(BaseModel):
    """A document's number and how well it answers."""

    index: int = Field(description="Of the document in the request, from 0.")
    relevance_score: float = Field(description="From 0 to 1.")
    document: RerankedText | None = None


class Reranking(BaseModel):
    """Documents, best first."""

    id: str
    model: str
    results: list[Reranked]
    usage: Usage


class Model(BaseModel):
    """The one model that there is, as OpenAI describes models."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The models, as OpenAI lists them."""

    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    """That the server answers."""

    status: Literal["ok"]


class JobState(BaseModel):
    """Where a job is; `result` is what the request would have answered."""

    job: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    progress: float
    doing: str
    ahead: int
    error: str | None = None
    result: Any = None


class Problem(BaseModel):
    """What was wrong."""

    detail: str = Field(description="One sentence.")


class OpenAIProblemFields(BaseModel):
    """What was wrong, as OpenAI says it."""

    message: str = Field(description="One sentence.")
    type: str
    param: str | None
    code: str | None


class OpenAIProblem(BaseModel):
    """An error, in OpenAI's form."""

    error: OpenAIProblemFields
