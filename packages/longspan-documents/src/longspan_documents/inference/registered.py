"""Pipelines of `transformers.pipeline` for documents of any length, with a model that transformers loads.

`transformers.pipeline` rejects the names "summarization" and "question-answering" before it looks them up in its
registry, so these are registered as "long-summarization" and "long-question-answering". `longspan.pipeline` uses the
plain names.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import Pipeline

from longspan_documents.inference.pipelines import QuestionAnsweringPipeline, SummarizationPipeline


class _OneByOne(Pipeline):
    """A pipeline that passes each input to a pipeline of Longspan."""

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False
    ours: Any

    def _sanitize_parameters(self, **pipeline_parameters: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, pipeline_parameters, {}

    def preprocess(self, input_: Any, **preprocess_parameters: Any) -> Any:
        return {"given": input_}

    def _forward(self, input_tensors: Any, **forward_parameters: Any) -> Any:
        return {"output": self.ours(input_tensors["given"], **forward_parameters)}

    def postprocess(self, model_outputs: Any, **postprocess_parameters: Any) -> Any:
        return model_outputs["output"]


class LongSummarization(_OneByOne):
    """`SummarizationPipeline` as a pipeline of transformers, which also accepts data sets and generators."""

    def __init__(self, model: Any, tokenizer: Any, **options: Any) -> None:
        from longspan_documents.inference.abstractive.loading import writer_of
        from longspan_documents.inference.abstractive.summarizer import Abstractive
        from longspan_documents.inference.summarize import load_summarizer
        from longspan_documents.inference.verbs import Decoding

        super().__init__(model=model, tokenizer=tokenizer, **options)
        writer = writer_of(self.model, tokenizer)
        self.ours = SummarizationPipeline(Abstractive(writer, decoding=Decoding(), picks=load_summarizer))

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Summarise a text, a list, a data set or a generator; arguments as in `SummarizationPipeline`."""
        results = super().__call__(inputs, *args, **kwargs)
        return [results] if isinstance(results, dict) else results

    def postprocess(self, model_outputs: Any, **postprocess_parameters: Any) -> Any:
        return model_outputs["output"][0]


class LongQuestionAnswering(_OneByOne):
    """`QuestionAnsweringPipeline` as a pipeline of transformers."""

    def __init__(self, model: Any, tokenizer: Any, **options: Any) -> None:
        from longspan_documents.inference.readers import reader_of

        super().__init__(model=model, tokenizer=tokenizer, **options)
        self.ours = QuestionAnsweringPipeline(reader_of(self.model, tokenizer))

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Answer; arguments as in `QuestionAnsweringPipeline`."""
        return self.ours(*inputs, **{**self._forward_params, **options})


def register_pipelines() -> None:
    """Register both with `transformers.pipeline`."""
    for task, kind, model in (
        ("long-summarization", LongSummarization, AutoModelForSeq2SeqLM),
        ("long-question-answering", LongQuestionAnswering, AutoModelForQuestionAnswering),
    ):
        PIPELINE_REGISTRY.register_pipeline(task, pipeline_class=kind, pt_model=model, type="text")
        # Otherwise `save_pretrained` would copy this file into the model's folder as custom code.
        if "_registered_impl" in vars(kind):
            delattr(kind, "_registered_impl")
