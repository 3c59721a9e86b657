"""What every method shares: states, networks as functions, optimisers, seeds. Imports torch and safetensors only."""
