from experiments.atari.runs import main, outlive_terminal

if __name__ == "__main__":  # not in the processes that it starts
    outlive_terminal()
    main()
