//! Executable memory: many programs packed into huge pages, W^X
