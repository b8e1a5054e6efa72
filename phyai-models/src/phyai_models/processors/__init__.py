"""From what a robot sees and says to what a model takes, and back: images, state, prompt, actions."""
