//! The last step of an image: its branches get their forms.

use bpf_jit_code::Code;
use bpf_jit_code::layout::{Branch, Layout};

/// The code, with the forms of its branches chosen.
pub(crate) fn laid_out<B: Branch>(mut code: Code, buf: &[u8], mut layout: Layout<B>, trap: u8) -> Code {
    if layout.finish(buf, &mut code.bytes).is_err() {
        // Images of `MAX_LIMIT` entries are far below what a branch reaches. One that is not must not be run.
        debug_assert!(false, "a branch of an image is out of reach");
        code.relocs.clear();
        code.bytes.clear();
        code.bytes.resize(16, trap);
    }
    layout.relocate(code.relocs.iter_mut().map(|reloc| &mut reloc.at));
    layout.relocate(code.unwind.iter_mut().map(|note| &mut note.at));
    code
}
