if __name__ == "__main__":  # processes that play import this file too, and need no torch
    from experiments.release.runs import main, outlive_terminal

    outlive_terminal()
    main()
