//! The last step of an image: choosing the forms of its branches.

use bpf_jit_code::Code;
use bpf_jit_code::layout::{Branch, Layout};

/// Returns the code, with the forms of its branches chosen.
pub(crate) fn laid_out<B: Branch>(mut code: Code, buf: &[u8], mut layout: Layout<B>, trap: u8) -> Code {
    if layout.finish(buf, &mut code.bytes).is_err() {
        // Images of `MAX_LIMIT` entries are far below the reach of a branch. An image beyond it must not run.
        debug_assert!(false, "a branch of an image is out of reach");
        code.relocs.clear();
        code.bytes.clear();
        code.bytes.resize(16, trap);
    }
    layout.relocate(code.relocs.iter_mut().map(|reloc| &mut reloc.at));
    layout.relocate(code.unwind.iter_mut().map(|note| &mut note.at));
    code
}
