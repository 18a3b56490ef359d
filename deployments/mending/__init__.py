"""What a diagnosis proposes, as changes that one click can make. Pure.

`edits.py` changes one thing of a spec and gives the patch (deployments/patching.py applies it), `around.py` is what is
known of the host, `turn.py` makes typed fixes of what the diagnosis offers, `refusals.py` those of what the planner or
the engine's adapter refused before a start. Whether a patch is accepted is asked elsewhere (deployments/remedies.py).
"""
