"""Models of requests and responses, from which FastAPI validates requests and generates the OpenAPI document."""

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
from longspan.options import Options, fields_of, without_limits
from longspan.settings import LARGEST
from longspan_documents.inference.verbs import Answer, Chunks, Embed, Summarize


def _mended(text: Any) -> Any:
    return mend(text)[0] if isinstance(text, str) else text


LooseText = Annotated[str, BeforeValidator(_mended)]
"""A text; lone surrogates, which JSON can contain but tokenizers cannot process, become U+FFFD."""


class StrictRequest(BaseModel):
    """Base of all requests; unknown keys are rejected, so that misspelt ones are noticed."""

    model_config = ConfigDict(extra="forbid")


class TextRequest(StrictRequest):
    """Base of requests that may contain a text instead of uploaded documents."""

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
        """Returns the text as plain data for a worker."""
        notes = [mended_note(self._halves)] if self._halves else []
        return {"id": None, "name": "the text", "text": self.text, "notes": notes}


AnyRequest = TypeVar("AnyRequest", bound=BaseModel)
AnyOptions = TypeVar("AnyOptions", bound=Options)


def with_options(declared: type[Options]) -> Callable[[type[AnyRequest]], type[AnyRequest]]:
    """Returns a decorator that adds a field to a request for each option that a verb declares for the API."""

    def decorate(request: type[AnyRequest]) -> type[AnyRequest]:
        made: dict[str, Any] = {option.name: _request_field(option) for option in fields_of(declared, "api")}
        return create_model(
            request.__name__, __base__=request, __module__=request.__module__, __doc__=request.__doc__, **made
        )

    return decorate


def _request_field(field: OptionField) -> tuple[Any, Any]:
    """Returns the type of a field and its description for pydantic."""
    kind, limits = without_limits(field.plain), field.option.api or field.limits
    bounds: dict[str, Any] = {"ge": limits.minimum, "le": limits.maximum, "gt": limits.above, "lt": limits.below}
    if str in (kind, *get_args(kind)):
        bounds = {"min_length": limits.minimum, "max_length": limits.maximum}
    elif float in (kind, *get_args(kind)):
        bounds["allow_inf_nan"] = False
    constraints: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound not in (None, LARGEST)}
    return kind, Field(default=field.default, description=field.option.help, **constraints)


def options_in(request: BaseModel, declared: type[AnyOptions]) -> AnyOptions:
    """Returns the validated options of a request.

    Raises:
        InputError: options are inconsistent.
    """
    return declared.parse({option.name: getattr(request, option.name) for option in fields_of(declared, "api")}, "api")


@with_options(Summarize)
class SummaryRequest(TextRequest):
    """One document or text, and the length of its summary in one of three ways; the default is medium."""

    document: str | None = Field(default=None, description="Id of an uploaded document.")
    scores: bool = Field(default=False, description="Add the score of every sentence, by where it begins.")


@with_options(Answer)
class AnswerRequest(TextRequest):
    """Documents or a text, and one or several questions."""

    documents: list[str] = Field(default=[], description="Ids of uploaded documents.")
    question: str | list[str] = Field(description="One question, or several.")


@with_options(Embed)
class EmbedRequest(StrictRequest):
    """Separate texts, or documents that are read as a whole."""

    texts: list[LooseText] = Field(default=[], description="Loose texts, each read by itself.")
    documents: list[str] = Field(default=[], description="Ids of uploaded documents.")


@with_options(Chunks)
class ChunksRequest(TextRequest):
    """One document or text, to be split into passages."""

    document: str | None = Field(default=None, description="Id of an uploaded document.")


def _no_tokens(value: Any) -> Any:
    """Returns the value of `input` if it contains texts.

    Raises:
        InputError: it contains token ids.
    """
    entries = value if isinstance(value, list) else []
    if any(isinstance(entry, int) or (isinstance(entry, list) and entry) for entry in entries):
        raise InputError(
            "input holds token numbers, and this server does not have the tokenizer that they are of; send texts (in "
            "LangChain, OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )
    return value


class EmbeddingsRequest(BaseModel):
    """Request of OpenAI's `/v1/embeddings`; lists of token ids are rejected."""

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
    """A document in the format of Cohere's first clients."""

    text: LooseText


class RerankRequest(BaseModel):
    """Request of the rerankers of Jina, Cohere and vLLM."""

    query: LooseText = Field(min_length=1, description="The question.")
    documents: list[LooseText | RerankDocument] = Field(description="Texts, or objects with a `text`.")
    top_n: int | None = Field(default=None, ge=1, description="Number of the best to return; all by default.")
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
    """A block of a document for display."""

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
    """A sentence of a summary, with its position."""

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
    """The answer of documents to one question."""

    question: str
    answered: bool = Field(description="Whether an answer may be there.")
    sure: Literal["likely", "unsure", "probably not there"] = Field(description="How sure that is, in words.")
    probability: float | None = Field(
        description="That one of the three best passages holds an answer; null where the text is not English."
    )
    there: float | None = Field(description="The probability that any passage does; null likewise.")
    likely: float = Field(description="The probability from which an answer is reported as likely.")
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
    """Vectors of separate texts."""

    vectors: list[list[float]]
    tokens: int


class EmbeddedSentence(BaseModel):
    """A sentence of a document, its position and its vector."""

    text: str
    start: int
    end: int
    vector: list[float]


class EmbeddedDocument(BaseModel):
    """The vector of a document, and optionally those of its sentences."""

    document: str
    name: str
    tokens: int
    vector: list[float]
    sentences: list[EmbeddedSentence] | None = None


class Embedding(BaseModel):
    """A vector, in OpenAI's format."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of them as float32, little-endian.")


class Usage(BaseModel):
    """The number of tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Vectors, in OpenAI's format."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class RerankedText(BaseModel):
    """A document that was reranked."""

    text: str


class Reranked(BaseModel):
    """A document's index and its relevance score."""

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
    """The server's only model, in OpenAI's format."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The list of models, in OpenAI's format."""

    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    """The server responds."""

    status: Literal["ok"]


class JobState(BaseModel):
    """The state of a job; `result` is the response that the request would have had."""

    job: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    progress: float
    doing: str
    ahead: int
    error: str | None = None
    result: Any = None


class Problem(BaseModel):
    """The error."""

    detail: str = Field(description="One sentence.")


class OpenAIProblemFields(BaseModel):
    """The error, in OpenAI's format."""

    message: str = Field(description="One sentence.")
    type: str
    param: str | None
    code: str | None


class OpenAIProblem(BaseModel):
    """An error response, in OpenAI's format."""

    error: OpenAIProblemFields
