//! What a JIT hands over: code bytes, relocations, layout
