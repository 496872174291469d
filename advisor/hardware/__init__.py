"""What a machine is: profiles, detection, placement."""
