"""DialogLM: long dialogues, pre-training by denoising a window of one, and where topics begin (Zhong et al. 2022).

From files to score::

    formats    documents, records, subtitles as turns    reading    data sets by name, files and folders; made-up ones
    noises     five ways to disturb turns, how much      noising    a window is chosen and disturbed: `longspan noise`
    pieces     dialogues on disk, as long as is read     denoising  the task of pre-training
    topics     the task of telling where topics begin, and its measures

What a turn and a dialogue is stands in `longspan.data.turns`, since summaries are made of them too.
"""
