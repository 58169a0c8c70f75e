"""Proofs that it never breaks: a seeded chaos driver, races, crowds and soaks against a real server.

``plans.py`` says what a run is asked for and what must come of it, ``ledger.py`` judges what did come, ``clients.py``
holds what well and ill behaved clients do, ``usage.py`` reads what processes hold, ``chaos.py`` lets them loose on one
server after another. ``python -m scenarios.faults`` runs it for as long as you like; docs/design/proofs.md tells more.
"""
