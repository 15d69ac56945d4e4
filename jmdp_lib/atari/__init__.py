"""Joint MDPs in an emulator: queried tables (`tables`), and moments learned from them (`training`).

Nothing here is imported by `import jmdp_lib`; the learning side needs torch.
"""
