"""Ready-made systems: document export and multi-document reports. They use public names only."""
