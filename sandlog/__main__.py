"""`python -m sandlog`."""

from sandlog.main import main

if __name__ == "__main__":
    main()
