"""Commands that people paste, read as text: nothing is run, nothing is looked up, no variable of this machine is asked.

shell.py       text → commands of words, as shells would split it
unwrap.py      sudo, env, nohup, python -m … taken off, until an engine is found
containers.py  docker run and compose files
units.py       systemd units
vllm.py, sglang.py, llamacpp.py, ollama.py    what each engine's words mean for a deployment
draft.py       what comes of it, with findings
match.py       which model of the catalog is meant
"""
