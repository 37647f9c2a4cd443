//! An error of the family has its cause in its text, and returns none from `source()`.
//!
//! Problem: a cause that stands in the text and is returned by `source()` too is printed twice by reports that walk the
//! chain (`{:#}` of anyhow). Approach: the text is complete everywhere, as services log it by `Display`
//! (docs/decisions/020-causes.md). `thiserror` derives `source()` from a field that is named `source` or has `#[from]`
//! or `#[source]`; a field `r#source` is an ordinary field. The rule reads the derives of all crates with a reviewed
//! interface, and hand-written `source()`.

use crate::{
    listed::{derives_error, reviewed},
    shell,
};
use anyhow::Context;
use std::fs;
use syn::{Attribute, Fields, ImplItem, Item, visit::Visit};

/// Types with a `source()` written by hand, and the reason.
const BY_HAND: [(&str, &str); 1] = [("Stop", "its text is that of the helper's error, whose own cause it returns")];

/// Reports errors that return their cause, and errors whose text lacks it.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let mut broken = Vec::new();
    for (_, folder) in reviewed(&shell::root())? {
        for path in shell::files(&folder)? {
            let path = folder.join(path);
            if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                let found = causes(&text).with_context(|| path.display().to_string())?;
                let shown = path.strip_prefix(shell::root())?.display().to_string();
                broken.extend(found.into_iter().map(|what| format!("{shown}: {what}")));
            }
        }
    }
    Ok(broken)
}

/// Violations in one source.
fn causes(text: &str) -> syn::Result<Vec<String>> {
    let mut visitor = Causes(Vec::new());
    // Most sources have no errors, and need not be parsed.
    if text.contains("Error") {
        visitor.visit_file(&syn::parse_file(text)?);
    }
    Ok(visitor.0)
}

struct Causes(Vec<String>);

impl<'ast> Visit<'ast> for Causes {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            // Errors of unit tests play errors of a host.
            Item::Mod(item) if item.ident == "tests" => return,
            Item::Enum(item) if derives_error(&item.attrs) => {
                for variant in &item.variants {
                    self.look(&format!("{}::{}", item.ident, variant.ident), &variant.attrs, &variant.fields);
                }
            }
            Item::Struct(item) if derives_error(&item.attrs) => {
                self.look(&item.ident.to_string(), &item.attrs, &item.fields);
            }
            Item::Impl(item) => self.look_by_hand(item),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }
}

impl Causes {
    fn look(&mut self, name: &str, attributes: &[Attribute], fields: &Fields) {
        let text = attributes.iter().find(|attribute| attribute.path().is_ident("error"));
        let text = text.and_then(|attribute| attribute.meta.require_list().ok());
        let text = text.map(|list| list.tokens.to_string()).unwrap_or_default();
        if text == "transparent" {
            return;
        }
        for field in fields {
            let marked = field.attrs.iter().any(|a| a.path().is_ident("from") || a.path().is_ident("source"));
            let ident = field.ident.as_ref().map(ToString::to_string);
            if marked || ident.as_deref() == Some("source") {
                self.0.push(format!(
                    "`{name}` returns its cause from `source()`: put the cause into the text only, with a field `r#source` \
                     in place of `source`, and `impl From` in place of `#[from]`"
                ));
            }
            if ident.as_deref() == Some("r#source") && !text.contains("{source}") && !text.contains(". source") {
                self.0.push(format!("`{name}` leaves its cause out of its text"));
            }
        }
    }

    fn look_by_hand(&mut self, item: &syn::ItemImpl) {
        let is_error = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        let syn::Type::Path(of) = &*item.self_ty else { return };
        let Some(of) = of.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
        let returns =
            item.items.iter().any(|item| matches!(item, ImplItem::Fn(method) if method.sig.ident == "source"));
        if is_error.is_some_and(|name| name.ident == "Error") && returns && !BY_HAND.iter().any(|(name, _)| *name == of)
        {
            self.0.push(format!("`{of}` has a `source()`: put the cause into the text only"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_stands_in_the_text_and_nowhere_else() {
        let twice = "#[derive(thiserror::Error)] enum E { #[error(\"a: {source}\")] A { source: B }, }";
        assert_eq!(causes(twice).unwrap().len(), 1);
        let from = "#[derive(Debug, thiserror::Error)] enum E { #[error(\"a: {0}\")] A(#[from] B), }";
        assert_eq!(causes(from).unwrap().len(), 1);
        let marked = "#[derive(thiserror::Error)] #[error(\"a\")] struct E { #[source] inner: B }";
        assert_eq!(causes(marked).unwrap().len(), 1);
        let hidden = "#[derive(thiserror::Error)] enum E { #[error(\"a\")] A { r#source: B } }";
        assert_eq!(causes(hidden).unwrap(), ["`E::A` leaves its cause out of its text"]);
        let by_hand = "impl Error for E { fn source(&self) -> Option<&dyn Error> { None } }";
        assert_eq!(causes(by_hand).unwrap().len(), 1);
        let inside = format!("mod inner {{ {twice} }}");
        assert_eq!(causes(&inside).unwrap().len(), 1);
        for fine in [
            "#[derive(thiserror::Error)] enum E { #[error(\"a: {source}\")] A { r#source: B } }",
            "#[derive(thiserror::Error)] enum E { #[error(\"{}\", named(.map, .source))] A { r#source: B } }",
            "#[derive(thiserror::Error)] enum E { #[error(transparent)] A(#[from] B), #[error(\"b\")] C }",
            "impl Error for Stop { fn source(&self) -> Option<&dyn Error> { None } }",
            "struct Error { source: u8 }",
        ] {
            assert_eq!(causes(fine).unwrap(), <[String; 0]>::default(), "{fine}");
        }
    }
}
