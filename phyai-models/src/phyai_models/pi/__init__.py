"""What π0 and π0.5 share: their towers, their inputs, flow matching, and how lerobot stores them."""
