if __name__ == "__main__":  # processes that simulate import this file, too, and need no torch
    from experiments.processes import outlive_terminal
    from experiments.release.runs import main

    outlive_terminal()
    main()
