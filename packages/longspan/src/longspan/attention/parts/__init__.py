"""What several mechanisms share: windows, global tokens, relative positions, reach and costs."""
