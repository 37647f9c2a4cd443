//! Types that a user of [`ENTRY`](super::ENTRY) meets and cannot name.
//!
//! Problem: a re-exported type has public fields and methods, whose types are of other crates of the family. A user who
//! depends on one crate cannot write their names. Approach: starting at the re-exported types, the types that public
//! signatures name are followed through the sources of all crates; each must be re-exported as well.

use super::{Names, Signatures, imported, is_shown, last_name};
use std::collections::{BTreeMap, BTreeSet};
use syn::Item;

/// A crate, as it is written in paths, and a type in it.
type Name = (String, String);

/// A public type of a crate of the family.
#[derive(Default)]
struct Type {
    module: String,
    /// The types of the family in its public fields, variants and methods.
    names: BTreeSet<Name>,
}

/// The crates of the family: their public types, and the names that they re-export.
#[derive(Default)]
pub(super) struct Family {
    types: BTreeMap<Name, Type>,
    aliases: BTreeMap<Name, Name>,
    /// Crates that re-export all of a module of another one.
    globs: BTreeMap<String, String>,
}

impl Family {
    /// Adds a crate: its files by module.
    pub(super) fn add(&mut self, of: &str, files: &[(String, Vec<Item>)]) {
        let mut names = Names::default();
        files.iter().for_each(|(_, items)| names.collect(items));
        for (public, path, alias) in files.iter().flat_map(|(_, items)| items).flat_map(imported) {
            let from = if path[0].starts_with("bpf_") { &path[0] } else { of };
            let (here, there) = ((of.to_owned(), alias), (from.to_owned(), path[path.len() - 1].clone()));
            if public && here.1 == "*" {
                self.globs.insert(here.0, there.0);
            } else if public && here != there {
                self.aliases.insert(here, there);
            }
        }
        for (module, items) in files {
            self.add_items(of, module, items, &names);
        }
    }

    fn add_items(&mut self, of: &str, module: &str, items: &[Item], names: &Names) {
        let imports: BTreeMap<String, Vec<String>> =
            items.iter().flat_map(imported).map(|(_, path, alias)| (alias, path)).collect();
        for item in items {
            let name = match item {
                Item::Struct(item) if is_shown(&item.vis, &item.attrs) => item.ident.to_string(),
                Item::Enum(item) if is_shown(&item.vis, &item.attrs) => item.ident.to_string(),
                Item::Trait(item) if is_shown(&item.vis, &item.attrs) => item.ident.to_string(),
                Item::Type(item) if is_shown(&item.vis, &item.attrs) => item.ident.to_string(),
                Item::Impl(item) if item.trait_.is_none() => last_name(&item.self_ty),
                Item::Mod(item) => {
                    let inner = if module.is_empty() { String::new() } else { format!("{module}::") };
                    if let Some((_, items)) = &item.content {
                        self.add_items(of, &format!("{inner}{}", item.ident), items, names);
                    }
                    continue;
                }
                _ => continue,
            };
            let mut signatures = Signatures { paths: Vec::new() };
            signatures.of(item, names);
            let meant = signatures.paths.into_iter().map(|path| {
                let path = match imports.get(&path[0]) {
                    Some(import) => import.iter().cloned().chain(path.into_iter().skip(1)).collect(),
                    None => path,
                };
                let from = if path[0].starts_with("bpf_") { &path[0] } else { of };
                (from.to_owned(), path[path.len() - 1].clone())
            });
            let entry = self.types.entry((of.to_owned(), name)).or_default();
            entry.names.extend(meant);
            if !matches!(item, Item::Impl(_)) {
                entry.module = module.to_owned();
            }
        }
    }

    /// The place where a name is defined.
    fn resolve(&self, name: &Name) -> Name {
        let mut name = name.clone();
        for _ in 0..8 {
            if self.types.contains_key(&name) {
                break;
            }
            name = match (self.aliases.get(&name), self.globs.get(&name.0)) {
                (Some(next), _) => next.clone(),
                (None, Some(of)) if *of != name.0 => (of.clone(), name.1),
                (None, _) => break,
            };
        }
        name
    }

    /// The types that signatures of re-exported types name and that are not re-exported, each with a type that names
    /// it. The entry crate re-exports `paths`; its own types are left to the lint `unreachable_pub`. `BorrowedFd` is
    /// std's where there are file descriptors.
    pub(super) fn unnamed(&self, paths: &[Vec<String>]) -> BTreeMap<Name, String> {
        let modules: BTreeSet<Name> =
            paths.iter().filter(|path| path.len() > 1).map(|path| (path[0].clone(), path[1..].join("::"))).collect();
        let is_reached = |name: &Name, of: &Type| {
            let mut module = String::new();
            of.module.split("::").any(|word| {
                module.push_str(if module.is_empty() { "" } else { "::" });
                module.push_str(word);
                modules.contains(&(name.0.clone(), module.clone()))
            })
        };
        let crates: BTreeSet<&String> = paths.iter().filter(|path| path.len() == 1).map(|path| &path[0]).collect();
        let named = paths
            .iter()
            .filter(|path| path[0].starts_with("bpf_"))
            .map(|path| self.resolve(&(path[0].clone(), path[path.len() - 1].clone())));
        let of_modules = self
            .types
            .iter()
            .filter(|(name, of)| crates.contains(&name.0) || is_reached(name, of))
            .map(|(name, _)| name.clone());
        let reached: BTreeSet<Name> = named.chain(of_modules).collect();
        let mut unnamed = BTreeMap::new();
        for (name, of) in reached.iter().filter_map(|name| Some((name, self.types.get(name)?))) {
            for meant in of.names.iter().map(|meant| self.resolve(meant)) {
                let is_std = meant == ("bpf_os".to_owned(), "BorrowedFd".to_owned());
                if self.types.contains_key(&meant) && !reached.contains(&meant) && !is_std {
                    unnamed.entry(meant).or_insert_with(|| name.1.clone());
                }
            }
        }
        unnamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By a field, a method, a variant; through another crate's re-exports, one of which renames; not where a module or
    /// a crate is re-exported as a whole.
    #[test]
    fn types_that_a_user_meets_are_followed() {
        let file = |module: &str, source: &str| (module.to_owned(), syn::parse_file(source).unwrap().items);
        let mut family = Family::default();
        let core = "
            pub struct Known { pub asked: Asked, own: Own } pub enum Asked { One(Far) }
            pub struct Far; pub struct Own; #[doc(hidden)] pub struct Hidden;
            impl Known { pub fn hidden(&self) -> Hidden { todo!() } fn own(&self) -> Own { todo!() } }";
        family.add("bpf_core", &[file("", core)]);
        let outer = "
            pub use bpf_core::*; pub use inner::Plain as Fancy; use bpf_whole::W;
            pub struct Outer(pub W); impl Outer { pub fn known(&self) -> Known { todo!() } }";
        family.add(
            "bpf_outer",
            &[file("", outer), file("inner", "pub struct Plain { pub deep: Deep } pub struct Deep;")],
        );
        family.add("bpf_whole", &[file("", "pub struct W { pub x: X } pub struct X;")]);
        let paths = |paths: &[&str]| -> Vec<Vec<String>> {
            paths.iter().map(|path| path.split("::").map(str::to_owned).collect()).collect()
        };
        let found = |of: &[&str]| -> Vec<String> {
            family.unnamed(&paths(of)).into_iter().map(|((of, name), by)| format!("{of}::{name} by {by}")).collect()
        };
        assert_eq!(found(&["bpf_whole"]), [""; 0]);
        assert_eq!(
            found(&["bpf_outer::Outer", "bpf_outer::Fancy"]),
            ["bpf_core::Known by Outer", "bpf_outer::Deep by Plain", "bpf_whole::W by Outer"]
        );
        assert_eq!(found(&["bpf_outer::Known", "bpf_outer::inner"]), ["bpf_core::Asked by Known"]);
        assert_eq!(found(&["bpf_outer::Known", "bpf_core::Asked", "bpf_outer::Far"]), [""; 0]);
    }
}
