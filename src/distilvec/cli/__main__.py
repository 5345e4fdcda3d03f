"""`python -m distilvec.cli`, which is how torchrun starts a command."""

from distilvec.cli.main import main

if __name__ == "__main__":
    main()
