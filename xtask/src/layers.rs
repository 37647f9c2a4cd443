//! Which file of a crate uses which: no circles, and in crates with layers only downward.
//!
//! Problem: the compiler takes the files of a crate in any order, so nothing keeps two of them from needing each other,
//! and after a while a crate is one knot of twenty. Approach: a file uses another if a path in it leads to an item that
//! is defined there. Paths are resolved as the compiler does, over the modules of the crate: through imports and
//! re-exports to the definition, so a folder's `mod.rs` that only lists is used by nobody.
//!
//! * No circles, but between a module and those inside it: a parent keeps what its children share.
//! * In a crate of [`LAYERS`], a file uses files of its own layer and of lower ones.
//!
//! Limits: a method is found by its type, and a type that is never named is not found. Tests use what they
//! like: items and files under `cfg(test)` do not count.

use crate::shell;
use anyhow::Context;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::{Item, UseTree, punctuated::Punctuated, spanned::Spanned, visit::Visit};

/// Crates in layers, lowest first: a folder or file of the source, without what it ends in. The crate's root is above
/// all of them.
const LAYERS: &[(&str, &[&str])] = &[(
    "runtime",
    &[
        "num", "faults", "error", "context", "oracle", "abi", "engine", "call", "program", "exec", "handle", "record",
        "attach", "load",
    ],
)];

/// Reports circles and broken layers of all crates.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let root = shell::root();
    let mut folders: Vec<PathBuf> =
        fs::read_dir(root.join("crates"))?.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    folders.sort();
    folders.extend(["benches", "xtask"].map(|folder| root.join(folder)));
    let mut broken = Vec::new();
    for folder in folders {
        let source = folder.join("src");
        let Some(top) = ["lib.rs", "main.rs"].into_iter().find(|name| source.join(name).exists()) else { continue };
        let name = folder.strip_prefix(root.join("crates")).unwrap_or(&folder).display().to_string();
        let files = Crate::read(&source, top)?;
        let layers = LAYERS.iter().find(|(of, _)| *of == name).map(|(_, layers)| *layers);
        let found = circles(&files).into_iter().chain(layers.into_iter().flat_map(|layers| upward(&files, layers)));
        broken.extend(found.map(|what| format!("{name}: {what}")));
    }
    Ok(broken)
}

/// Circles of files, each with the uses that make it.
fn circles(of: &Crate) -> Vec<String> {
    let all: BTreeSet<usize> = (0..of.files.len()).collect();
    let mut found = Vec::new();
    let mut open = vec![all];
    while let Some(files) = open.pop() {
        for circle in components(&files, &of.uses) {
            let within =
                |top: usize| circle.iter().all(|&file| of.files[file].module.starts_with(&of.files[top].module));
            match circle.iter().find(|&&file| within(file)) {
                // A parent and what is inside it: no circle of theirs may go on without the parent.
                Some(parent) => open.push(circle.iter().copied().filter(|file| file != parent).collect()),
                None => found.push(describe(of, &circle)),
            }
        }
    }
    found.sort();
    found
}

fn describe(of: &Crate, circle: &BTreeSet<usize>) -> String {
    let name = |file: usize| of.files[file].path.display().to_string();
    let mut text = format!("a circle of {} files", circle.len());
    for (&(from, to), seen) in &of.uses {
        if circle.contains(&from) && circle.contains(&to) {
            text += &format!("\n      {}:{} uses `{}` of {}", name(from), seen.line, seen.path, name(to));
        }
    }
    text
}

/// The strongly connected components of more than one file.
fn components(files: &BTreeSet<usize>, uses: &BTreeMap<(usize, usize), Seen>) -> Vec<BTreeSet<usize>> {
    let reach = |start: usize| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(file) = open.pop() {
            for &(_, to) in uses.range((file, 0)..=(file, usize::MAX)).map(|(pair, _)| pair) {
                if files.contains(&to) && reached.insert(to) {
                    open.push(to);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<usize, BTreeSet<usize>> = files.iter().map(|&file| (file, reach(file))).collect();
    let mut found = BTreeSet::new();
    for (&file, others) in &reached {
        let circle: BTreeSet<usize> = others.iter().copied().filter(|other| reached[other].contains(&file)).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// Uses of a higher layer, files in no layer, and layers without files.
fn upward(of: &Crate, layers: &[&str]) -> Vec<String> {
    let layer = |file: usize| {
        let first = of.files[file].module.first()?;
        layers.iter().position(|layer| layer == first)
    };
    let mut broken = Vec::new();
    for (i, file) in of.files.iter().enumerate() {
        if !file.module.is_empty() && layer(i).is_none() {
            broken.push(format!("{}: in no layer", file.path.display()));
        }
    }
    for (i, name) in layers.iter().enumerate() {
        if (0..of.files.len()).all(|file| layer(file) != Some(i)) {
            broken.push(format!("layer `{name}` has no files"));
        }
    }
    for (&(from, to), Seen { line, path }) in &of.uses {
        if let (Some(low), Some(high)) = (layer(from), layer(to))
            && low < high
        {
            let (from, above) = (of.files[from].path.display(), layers[high]);
            broken.push(format!("{from}:{line}: uses `{path}` of the higher layer `{above}`"));
        }
        if layer(from).is_some() && of.files[to].module.is_empty() {
            broken.push(format!("{}:{line}: uses `{path}` of the crate's root", of.files[from].path.display()));
        }
    }
    broken
}

/// A crate's files and who uses whom.
#[derive(Default)]
struct Crate {
    files: Vec<File>,
    /// The files that use each other, by place in `files`, and where that is first seen.
    uses: BTreeMap<(usize, usize), Seen>,
    modules: BTreeMap<Vec<String>, Module>,
    /// `macro_rules!`, which are in scope behind their definition, by name: in which files.
    macros: BTreeMap<String, BTreeSet<usize>>,
}

struct File {
    path: PathBuf,
    module: Vec<String>,
}

struct Seen {
    line: usize,
    path: String,
}

#[derive(Default)]
struct Module {
    /// Items that the module defines, and the file of each.
    items: BTreeMap<String, usize>,
    /// Imported names, and the path of each.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

impl Crate {
    fn read(source: &Path, top: &str) -> anyhow::Result<Crate> {
        let mut this = Crate::default();
        let mut open = vec![(PathBuf::from(top), Vec::new())];
        let mut parsed = Vec::new();
        while let Some((path, module)) = open.pop() {
            let text = fs::read_to_string(source.join(&path)).with_context(|| path.display().to_string())?;
            let items = syn::parse_file(&text).with_context(|| path.display().to_string())?.items;
            let children = this.add(path, module, &items);
            for module in children {
                let flat = PathBuf::from_iter(&module).with_extension("rs");
                let folder = PathBuf::from_iter(&module).join("mod.rs");
                open.push((if source.join(&flat).exists() { flat } else { folder }, module));
            }
            parsed.push(items);
        }
        this.resolve_all(&parsed);
        Ok(this)
    }

    /// Adds a file; the modules that are in files of their own.
    fn add(&mut self, path: PathBuf, module: Vec<String>, items: &[Item]) -> Vec<Vec<String>> {
        let file = self.files.len();
        self.files.push(File { path, module: module.clone() });
        let mut children = Vec::new();
        self.define(file, &module, items, &mut children);
        children
    }

    fn define(&mut self, file: usize, module: &[String], items: &[Item], children: &mut Vec<Vec<String>>) {
        self.module(module);
        for item in items.iter().filter(|item| !for_tests(attributes(item))) {
            if let Item::Mod(inner) = item {
                let name = [module, &[inner.ident.to_string()]].concat();
                match &inner.content {
                    Some((_, items)) => self.define(file, &name, items, children),
                    None => children.push(name),
                }
                continue;
            }
            if let (Item::Macro(rules), Some(ident)) = (item, name_of(item)) {
                if rules.mac.path.is_ident("macro_rules") {
                    self.macros.entry(ident.clone()).or_default().insert(file);
                    // Exported macros belong to the crate's root.
                    self.modules.entry(Vec::new()).or_default().items.insert(ident, file);
                }
                continue;
            }
            if let Some(name) = name_of(item) {
                self.module(module).items.insert(name, file);
            }
        }
        // Imports inside functions too: their names stand for the same things.
        let mut imports = Imports::default();
        items.iter().filter(|item| !matches!(item, Item::Mod(_))).for_each(|item| imports.visit_item(item));
        for (name, path) in imports.found {
            match name {
                Some(name) => drop(self.module(module).imports.insert(name, path)),
                None => self.module(module).globs.push(path),
            }
        }
    }

    fn module(&mut self, path: &[String]) -> &mut Module {
        self.modules.entry(path.to_vec()).or_default()
    }

    fn resolve_all(&mut self, parsed: &[Vec<Item>]) {
        for (file, items) in parsed.iter().enumerate() {
            let module = self.files[file].module.clone();
            self.resolve_items(file, &module, items);
        }
    }

    fn resolve_items(&mut self, file: usize, module: &[String], items: &[Item]) {
        for item in items.iter().filter(|item| !for_tests(attributes(item))) {
            if let Item::Mod(inner) = item {
                let name = [module, &[inner.ident.to_string()]].concat();
                self.resolve_items(file, &name, inner.content.as_ref().map_or(&[], |(_, items)| items));
                continue;
            }
            let mut paths = Paths::default();
            paths.visit_item(item);
            for (path, line) in paths.found {
                let target = match &path[..] {
                    [one] => self.macro_in_scope(file, module, one),
                    path => self.resolve(module, path, 0),
                };
                if let Some(to) = target.filter(|&to| to != file) {
                    self.uses.entry((file, to)).or_insert_with(|| Seen { line, path: path.join("::") });
                }
            }
        }
    }

    /// The file of the macro that a name stands for.
    fn macro_in_scope(&self, file: usize, module: &[String], name: &str) -> Option<usize> {
        let files = self.macros.get(name)?;
        let imported = self.modules[module].imports.get(name).map(|path| self.resolve(module, path, 0));
        imported.unwrap_or_else(|| files.get(&file).or(files.first()).copied())
    }

    /// The file that defines what a path in this module leads to; `None` for modules and for other crates.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<usize> {
        // Imports may go in circles.
        if depth > 16 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let parent = || module.split_last().map(|(_, parent)| parent.to_vec());
        match first.as_str() {
            "crate" => return self.resolve(&[], rest, depth + 1),
            "self" => return self.resolve(module, rest, depth + 1),
            "super" => return self.resolve(&parent()?, rest, depth + 1),
            _ => {}
        }
        let at = self.modules.get(module)?;
        let child = [module, std::slice::from_ref(first)].concat();
        if !rest.is_empty() && self.modules.contains_key(&child) {
            return self.resolve(&child, rest, depth + 1);
        }
        if let Some(&file) = at.items.get(first) {
            return Some(file);
        }
        // An import of the name itself is of another crate's.
        if let Some(target) = at.imports.get(first)
            && target != path
        {
            return self.resolve(module, &[target, rest].concat(), depth + 1);
        }
        if self.modules.contains_key(&child) {
            return None;
        }
        at.globs.iter().find_map(|glob| self.resolve(module, &[glob, path].concat(), depth + 1))
    }
}

/// `#[cfg(test)]`, and conditions that include it.
fn for_tests(attributes: &[syn::Attribute]) -> bool {
    fn needs_test(meta: &syn::Meta) -> bool {
        let inner = |list: &syn::MetaList| {
            list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated).unwrap_or_default()
        };
        match meta {
            syn::Meta::Path(path) => path.is_ident("test"),
            syn::Meta::List(list) if list.path.is_ident("all") => inner(list).iter().any(needs_test),
            syn::Meta::List(list) if list.path.is_ident("any") => inner(list).iter().all(needs_test),
            _ => false,
        }
    }
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    let mut conditions = conditions.filter_map(|attribute| attribute.parse_args::<syn::Meta>().ok());
    conditions.any(|condition| needs_test(&condition))
}

fn attributes(item: &Item) -> &[syn::Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Imports of a file: the path of each name; a glob has no name.
#[derive(Default)]
struct Imports {
    found: Vec<(Option<String>, Vec<String>)>,
}

impl Imports {
    fn add(&mut self, tree: &UseTree, prefix: &[String]) {
        let with = |name: String| match name.as_str() {
            "self" => prefix.to_vec(),
            _ => [prefix, &[name]].concat(),
        };
        match tree {
            UseTree::Path(path) => self.add(&path.tree, &[prefix, &[path.ident.to_string()]].concat()),
            UseTree::Name(name) => {
                let path = with(name.ident.to_string());
                self.found.push((path.last().cloned(), path));
            }
            UseTree::Rename(rename) => {
                self.found.push((Some(rename.rename.to_string()), with(rename.ident.to_string())));
            }
            UseTree::Glob(_) => self.found.push((None, prefix.to_vec())),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add(tree, prefix)),
        }
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        if !for_tests(&node.attrs) {
            self.add(&node.tree, &[]);
        }
    }
}

/// The paths that an item mentions, with their lines: those of several names, imports, and macros by name.
#[derive(Default)]
struct Paths {
    found: Vec<(Vec<String>, usize)>,
}

impl Paths {
    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        // How many colons there were since the last name.
        let mut colons = 0;
        let mut end = |path: &mut Vec<String>, line| {
            let path = std::mem::take(path);
            if path.len() > 1 {
                self.found.push((path, line));
            }
        };
        let mut groups = Vec::new();
        for token in tokens {
            match token {
                proc_macro2::TokenTree::Ident(ident) => {
                    if colons != 2 {
                        end(&mut path, line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                proc_macro2::TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                proc_macro2::TokenTree::Group(group) => {
                    end(&mut path, line);
                    colons = 0;
                    groups.push(group.stream());
                }
                proc_macro2::TokenTree::Punct(_) | proc_macro2::TokenTree::Literal(_) => {
                    end(&mut path, line);
                    colons = 0;
                }
            }
        }
        end(&mut path, line);
        groups.into_iter().for_each(|group| self.tokens(group));
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, node: &'ast syn::Path) {
        let names: Vec<String> = node.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 {
            self.found.push((names, node.span().start().line));
        }
        syn::visit::visit_path(self, node);
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        let mut imports = Imports::default();
        imports.visit_item_use(node);
        let line = node.span().start().line;
        self.found.extend(imports.found.into_iter().map(|(_, path)| (path, line)));
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        let line = node.path.span().start().line;
        self.found.push((node.path.segments.iter().map(|segment| segment.ident.to_string()).collect(), line));
        self.tokens(node.tokens.clone());
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if !for_tests(&node.attrs) {
            syn::visit::visit_item_mod(self, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of these modules: path, text. The first is the root.
    fn of(files: &[(&str, &str)]) -> Crate {
        let mut this = Crate::default();
        let mut parsed = Vec::new();
        for (path, text) in files {
            let module: Vec<String> = path.split('/').filter(|name| *name != "lib").map(str::to_owned).collect();
            let items = syn::parse_file(text).unwrap().items;
            this.add(PathBuf::from(format!("{path}.rs")), module, &items);
            parsed.push(items);
        }
        this.resolve_all(&parsed);
        this
    }

    fn uses(of: &Crate) -> Vec<(String, String)> {
        let name = |file: usize| of.files[file].path.display().to_string();
        of.uses.keys().map(|&(from, to)| (name(from), name(to))).collect()
    }

    #[test]
    fn paths_lead_to_definitions() {
        let root = ("lib", "mod a; mod b; pub use a::A as Re;");
        for text in [
            "use crate::a::A;",
            "use super::a::{self, A};",
            "use crate::a; fn f() { a::g() }",
            "fn f() -> crate::a::A {}",
            "use crate::Re;",
            "fn f() { use crate::a::*; }\nfn g() { super::a::g() }",
            "fn f() { m!(1, crate::a::g()) }",
            "fn f() { in_a!() }",
        ] {
            let of = of(&[root, ("a", "pub struct A; pub fn g() {} macro_rules! in_a { () => {} }"), ("b", text)]);
            assert!(uses(&of).contains(&("b.rs".into(), "a.rs".into())), "{text}");
        }
        for text in [
            "use crate::a;",
            "use std::a::A;",
            "use crate::a::inner;",
            "#[cfg(test)] mod tests { use crate::a::A; }",
            "#[cfg(all(test, unix))] use crate::a::A;",
            "/// [`crate::a::A`]\nfn f() {}",
            "macro_rules! in_a { () => {} } fn f() { in_a!() }",
            "use core::in_a; fn f() { in_a!() }",
        ] {
            let of = of(&[root, ("a", "pub struct A; pub mod inner {} macro_rules! in_a { () => {} }"), ("b", text)]);
            assert!(!uses(&of).iter().any(|(from, _)| from == "b.rs"), "{text}");
        }
    }

    #[test]
    fn circles_are_found() {
        let root = ("lib", "mod a; mod b; mod c;");
        let three = [root, ("a", "use crate::b::B; struct A;"), ("b", "use crate::c::C; struct B;")];
        let closed = of(&[&three[..], &[("c", "use crate::a::A; struct C;")]].concat());
        assert_eq!(circles(&closed).len(), 1);
        assert!(circles(&closed)[0].starts_with("a circle of 3 files"));
        let open = of(&[&three[..], &[("c", "struct C;")]].concat());
        assert!(circles(&open).is_empty());
    }

    #[test]
    fn a_parent_and_its_children_may_need_each_other() {
        let root = ("lib", "mod a;");
        let parent = ("a", "mod x; mod y; pub struct A; use x::X;");
        let x = ("a/x", "use super::A; use super::y::Y; pub struct X;");
        assert!(circles(&of(&[root, parent, x, ("a/y", "use super::A; pub struct Y;")])).is_empty());
        // Two children need each other: a circle without the parent.
        let of = of(&[root, parent, x, ("a/y", "use super::{A, x::X}; pub struct Y;")]);
        assert_eq!(circles(&of).len(), 1);
        assert!(circles(&of)[0].starts_with("a circle of 2 files"));
    }

    #[test]
    fn a_child_does_not_close_a_circle_of_its_parent_and_others() {
        let root = ("lib", "mod a; mod b;");
        let of = of(&[
            root,
            ("a", "mod x; pub struct A; use crate::b::B;"),
            ("a/x", "pub struct X; use super::A;"),
            ("b", "use crate::a::x::X; pub struct B;"),
        ]);
        assert_eq!(circles(&of).len(), 1);
    }

    #[test]
    fn layers_are_used_downward() {
        let root = ("lib", "mod low; mod high; pub use high::High;");
        let files = [root, ("low", ""), ("low/a", "pub struct A;"), ("high", "use crate::low::a::A; pub struct High;")];
        assert!(upward(&of(&files), &["low", "high"]).is_empty());
        assert_eq!(upward(&of(&files), &["high", "low"]).len(), 1);
        assert_eq!(upward(&of(&files), &["low"]), ["high.rs: in no layer"]);
        assert_eq!(upward(&of(&files), &["low", "high", "none"]), ["layer `none` has no files"]);
        // Through the root's re-export as well.
        let files = [root, ("low", "use crate::High; struct L;"), ("high", "pub struct High;")];
        assert_eq!(upward(&of(&files), &["low", "high"]).len(), 1);
    }
}
