"""What is played: environments, preprocessing, seeds."""
