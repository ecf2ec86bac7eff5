"""DialogLM: long dialogues, pre-training by window-based denoising, and topic segmentation (Zhong et al. 2022).

From files to score::

    formats    documents, records, subtitles as turns    reading    data sets by name, files and folders; synthetic
    noises     five noise types and their amounts        noising    selects and disturbs a window: `longspan noise`
    pieces     dialogues on disk, split to input length  denoising  the pre-training task
    topics     topic segmentation and its measures

Turns and dialogues are defined in `longspan.data.turns`, since summarization uses them too.
"""
