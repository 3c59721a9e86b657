"""The given pictures as a task of FLGo, which finds `core` by the name of this package."""
