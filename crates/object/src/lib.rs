//! BPF ELF objects: sections, maps, relocations, BTF
