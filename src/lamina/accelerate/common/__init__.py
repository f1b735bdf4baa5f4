"""What several methods share: geometry, operands, split-fp16 emulation."""
