if __name__ == "__main__":  # processes that simulate import this file, too, and need no torch
    from experiments.atari.runs import main
    from experiments.processes import outlive_terminal

    outlive_terminal()
    main()
