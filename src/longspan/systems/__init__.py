"""Published systems that are closed in themselves: a folder each, from rows and features to head, task and metric.

`ADDED` says by name and place what a system adds to the tables of lower rooms, as `longspan.register` enters what
others bring: so a plain `import longspan` loads every saved head and runs every task, none is imported before it is
asked for, and no room below imports one of these. A new system is a folder beside these, and its lines here.
"""

ADDED: dict[str, dict[str, str]] = {
    "tasks": {
        "coreference": "longspan.systems.coreference.task:Coreference",
        "candidate_choice": "longspan.systems.wikihop.task:CandidateChoice",
        "multi_hop": "longspan.systems.hotpotqa.task:MultiHop",
        "algorithmic": "longspan.systems.exercises.task:Algorithmic",
        "stories": "longspan.systems.exercises.task:Stories",
        "dialogue_denoising": "longspan.systems.dialogue.denoising:DialogueDenoising",
        "topic_segmentation": "longspan.systems.dialogue.topics:TopicSegmentation",
        "distillation": "longspan.systems.distillation.task:Distillation",
    },
    "heads": {
        "coreference": "longspan.systems.coreference:CoreferenceHead",
        "candidate_scoring": "longspan.systems.wikihop:CandidateHead",
        "multi_hop": "longspan.systems.hotpotqa:MultiHopHead",
    },
    "outputs": {
        "CoreferenceOutput": "longspan.systems.coreference.head:CoreferenceOutput",
        "CandidateScoringOutput": "longspan.systems.wikihop.head:CandidateScoringOutput",
        "MultiHopOutput": "longspan.systems.hotpotqa.head:MultiHopOutput",
    },
}
"""Table → name → "module:attribute"; `outputs` are those of heads that `longspan.models` shows beside their models."""
