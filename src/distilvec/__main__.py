"""`python -m distilvec` is the command `distilvec`; torchrun starts it so."""

from distilvec.cli.main import main

if __name__ == "__main__":
    main()
