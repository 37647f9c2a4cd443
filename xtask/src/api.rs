//! The public interface of the shipped libraries, as files that a review sees change: `xtask/api/PACKAGE.txt`.
//!
//! Problem: whether a change breaks users is not seen in a diff of sources, where a removed method looks like any
//! other. Approach: the `pub` items of a crate are listed from its syntax tree, and the lists are committed; `cargo
//! xtask rules` compares them, `cargo xtask api` rewrites them. rustdoc's JSON would resolve names too, but has another
//! format with each compiler; and the lint `unreachable_pub` ensures that users can reach every `pub` item.
//!
//! An item is listed where it is written, with its conditions (`cfg`), and a re-export as such. So a list has all
//! features and systems at once. An invocation of a macro that writes `pub` items is listed as it stands, and so are
//! the items that the macro's definition writes.
//!
//! A second rule holds the promise that one dependency is enough: a type of another crate of the family that a public
//! signature of [`ENTRY`] names is re-exported there, so that a user can name it, too. A third rule: its root file
//! re-exports a name once, in the root or in one of its modules.

mod named;

use crate::{publish, shell};
use anyhow::Context;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::visit::Visit;
use syn::{Attribute, Fields, ImplItem, Item, Signature, TraitItem, Type, UseTree, Visibility};

/// The crate that users depend on, and its folder.
const ENTRY: (&str, &str) = ("bpf-runtime", "crates/runtime/src");

/// Rewrites the lists.
pub(crate) fn bless() -> anyhow::Result<()> {
    let folder = folder();
    fs::create_dir_all(&folder)?;
    let lists = lists()?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if !lists.iter().any(|(name, _)| path.ends_with(format!("{name}.txt"))) {
            fs::remove_file(path)?;
        }
    }
    for (name, list) in lists {
        fs::write(folder.join(format!("{name}.txt")), list)?;
    }
    Ok(())
}

/// Packages whose list is not what their sources say.
pub(crate) fn check() -> anyhow::Result<Vec<String>> {
    let mut broken = Vec::new();
    for (name, list) in lists()? {
        let held = fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap_or_default();
        let (old, new): (BTreeSet<_>, BTreeSet<_>) = (held.lines().collect(), list.lines().collect());
        if held != list {
            let changed = new.symmetric_difference(&old).next().copied().unwrap_or("the order");
            let changed = changed.trim();
            broken.push(format!("{name}: its public interface has changed (`{changed}`): run `cargo xtask api`"));
        }
    }
    let files = parse(&shell::root().join(ENTRY.1))?;
    broken.extend(unnamed(&files).into_iter().map(|(of, name)| {
        format!("{}: a public signature names `{of}::{name}`, which it does not re-export", ENTRY.0)
    }));
    let mut family = named::Family::default();
    for (name, source) in libraries()?.into_iter().filter(|(name, _)| name != ENTRY.0) {
        family.add(&name.replace('-', "_"), &parse(&source)?);
    }
    let reached: Vec<Vec<String>> = files.iter().flat_map(|(_, items)| reexports(items)).collect();
    broken.extend(family.unnamed(&reached).into_iter().map(|((of, name), by)| {
        format!("{}: `{by}` has public parts of the type `{of}::{name}`, which is not re-exported", ENTRY.0)
    }));
    let root = files.iter().filter(|(module, _)| module.is_empty()).flat_map(|(_, items)| doubled(items));
    broken.extend(root.map(|path| format!("{}: `{path}` has two public paths; one is enough", ENTRY.0)));
    Ok(broken)
}

/// The types of other crates of the family that public signatures in these files name and that no `pub use` in them
/// makes reachable, as crate and name.
fn unnamed(files: &[(String, Vec<Item>)]) -> BTreeSet<(String, String)> {
    let mut names = Names::default();
    files.iter().for_each(|(_, items)| names.collect(items));
    let is_hidden_mod =
        |item: &Item, module: &str| matches!(item, Item::Mod(item) if item.ident == module && is_hidden(&item.attrs));
    let is_hidden_module =
        |module: &str| files.iter().any(|(_, items)| items.iter().any(|item| is_hidden_mod(item, module)));
    let (mut named, mut reached) = (BTreeSet::new(), BTreeSet::new());
    for (_, items) in files.iter().filter(|(module, _)| !is_hidden_module(module)) {
        let mut imports = BTreeMap::new();
        reached.extend(reexports(items));
        for (_, path, alias) in items.iter().flat_map(imported) {
            imports.insert(alias, path);
        }
        let mut signatures = Signatures { paths: Vec::new() };
        items.iter().for_each(|item| signatures.of(item, &names));
        for mut path in signatures.paths {
            if let Some(import) = imports.get(&path[0]) {
                path.splice(..1, import.iter().cloned());
            }
            if path.len() > 1 && path[0].starts_with("bpf_") {
                named.insert(path);
            }
        }
    }
    // A crate or a module that is re-exported as a whole makes everything in it reachable.
    named.retain(|path| (1..=path.len()).all(|end| !reached.contains(&path[..end])));
    named.into_iter().map(|path| (path[0].clone(), path[path.len() - 1].clone())).collect()
}

/// The paths that items re-export, in their public modules too, which are written in the same file.
fn reexports(items: &[Item]) -> Vec<Vec<String>> {
    let inner = items.iter().filter_map(|item| match item {
        Item::Mod(item) if is_pub(&item.vis) => item.content.as_ref(),
        _ => None,
    });
    let own = items.iter().flat_map(imported).filter(|(public, ..)| *public).map(|(_, path, _)| path);
    own.chain(inner.flat_map(|(_, items)| reexports(items))).collect()
}

/// Names that the root file of [`ENTRY`] re-exports by more than one path.
fn doubled(root: &[Item]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let plain = |path: Vec<String>| path.into_iter().skip_while(|word| word == "crate").collect::<Vec<_>>().join("::");
    reexports(root).into_iter().map(plain).filter(|path| !seen.insert(path.clone())).collect()
}

/// The imports of an item: whether they are public, the path, and the name in this file.
fn imported(item: &Item) -> Vec<(bool, Vec<String>, String)> {
    fn walk(tree: &UseTree, mut path: Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
        match tree {
            UseTree::Path(of) => {
                path.push(of.ident.to_string());
                walk(&of.tree, path, found);
            }
            UseTree::Name(of) if of.ident == "self" => {
                let name = path.last().cloned().unwrap_or_default();
                found.push((path, name));
            }
            UseTree::Name(of) => {
                path.push(of.ident.to_string());
                found.push((path, of.ident.to_string()));
            }
            UseTree::Rename(of) => {
                path.push(of.ident.to_string());
                found.push((path, of.rename.to_string()));
            }
            UseTree::Group(of) => of.items.iter().for_each(|tree| walk(tree, path.clone(), found)),
            UseTree::Glob(_) => found.push((path, "*".to_owned())),
        }
    }
    let Item::Use(item) = item else { return Vec::new() };
    let mut found = Vec::new();
    walk(&item.tree, Vec::new(), &mut found);
    found.into_iter().map(|(path, alias)| (is_pub(&item.vis), path, alias)).collect()
}

/// The paths of types in the public signatures of items.
struct Signatures {
    paths: Vec<Vec<String>>,
}

impl Signatures {
    fn of(&mut self, item: &Item, names: &Names) {
        match item {
            Item::Fn(item) if is_shown(&item.vis, &item.attrs) => self.visit_signature(&item.sig),
            Item::Type(item) if is_shown(&item.vis, &item.attrs) => self.visit_type(&item.ty),
            Item::Const(item) if is_shown(&item.vis, &item.attrs) => self.visit_type(&item.ty),
            Item::Struct(item) if is_shown(&item.vis, &item.attrs) => {
                let fields = item.fields.iter().filter(|field| is_shown(&field.vis, &field.attrs));
                fields.for_each(|field| self.visit_type(&field.ty));
            }
            Item::Enum(item) if is_shown(&item.vis, &item.attrs) => {
                let fields = item.variants.iter().flat_map(|variant| &variant.fields);
                fields.for_each(|field| self.visit_type(&field.ty));
            }
            Item::Trait(item) if is_shown(&item.vis, &item.attrs) => {
                for item in &item.items {
                    match item {
                        TraitItem::Fn(item) if !is_hidden(&item.attrs) => self.visit_signature(&item.sig),
                        TraitItem::Const(item) if !is_hidden(&item.attrs) => self.visit_type(&item.ty),
                        _ => {}
                    }
                }
            }
            Item::Impl(item) if item.trait_.is_none() && !names.is_private(&last_name(&item.self_ty)) => {
                for item in &item.items {
                    match item {
                        ImplItem::Fn(item) if is_shown(&item.vis, &item.attrs) => self.visit_signature(&item.sig),
                        ImplItem::Const(item) if is_shown(&item.vis, &item.attrs) => self.visit_type(&item.ty),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Signatures {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

fn is_shown(vis: &Visibility, attrs: &[Attribute]) -> bool {
    is_pub(vis) && !is_hidden(attrs)
}

fn is_hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attribute| tidy(attribute) == "#[doc(hidden)]")
}

fn folder() -> PathBuf {
    shell::root().join("xtask/api")
}

/// Each shipped library and its list.
fn lists() -> anyhow::Result<Vec<(String, String)>> {
    libraries()?.into_iter().map(|(name, source)| Ok((name, list(&source)?))).collect()
}

/// Each shipped library and the folder of its sources.
fn libraries() -> anyhow::Result<Vec<(String, PathBuf)>> {
    let metadata = publish::metadata()?;
    let mut libraries = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let shipped = package["publish"].as_array().is_none_or(|to| !to.is_empty());
        let mut targets = package["targets"].as_array().context("no targets")?.iter();
        let is_library = |kind: &serde_json::Value| matches!(kind.as_str(), Some("lib" | "proc-macro"));
        if shipped && targets.any(|target| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(is_library)))
        {
            let manifest = Path::new(package["manifest_path"].as_str().context("no manifest")?);
            let source = manifest.parent().context("a manifest lies in a folder")?.join("src");
            libraries.push((package["name"].as_str().context("no name")?.to_owned(), source));
        }
    }
    Ok(libraries)
}

/// The items of each file of a crate, with the file's module.
fn parse(source: &Path) -> anyhow::Result<Vec<(String, Vec<Item>)>> {
    let mut files = Vec::new();
    for path in shell::files(source)? {
        let text = fs::read_to_string(source.join(&path))?;
        let file = syn::parse_file(&text).with_context(|| source.join(&path).display().to_string())?;
        files.push((module(&path), file.items));
    }
    Ok(files)
}

/// Lists the `pub` items in the files of a crate.
fn list(source: &Path) -> anyhow::Result<String> {
    let files = parse(source)?;
    let mut names = Names::default();
    files.iter().for_each(|(_, items)| names.collect(items));
    let mut modules = Vec::new();
    for (module, items) in &files {
        list_module(module, items, &names, &mut modules);
    }
    modules.sort();
    let mut text = String::new();
    for (module, lines) in modules {
        let title = if module.is_empty() { "crate" } else { &module };
        text.push_str(&format!("{}{title}\n", if text.is_empty() { "" } else { "\n" }));
        lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    Ok(text)
}

/// `a::b` of `a/b.rs` and `a/b/mod.rs`.
fn module(path: &Path) -> String {
    let path = path.with_extension("");
    let mut words: Vec<_> = path.iter().map(|word| word.to_string_lossy()).collect();
    if words.last().is_some_and(|last| last == "mod" || (words.len() == 1 && last == "lib")) {
        words.pop();
    }
    words.join("::")
}

/// The types, traits and macros of a crate: implementations are part of its interface where both sides are.
#[derive(Default)]
struct Names {
    public: BTreeSet<String>,
    private: BTreeSet<String>,
    /// Macros that write `pub` items.
    macros: BTreeSet<String>,
}

impl Names {
    fn collect(&mut self, items: &[Item]) {
        for item in items {
            let (vis, name) = match item {
                Item::Struct(item) => (&item.vis, &item.ident),
                Item::Enum(item) => (&item.vis, &item.ident),
                Item::Union(item) => (&item.vis, &item.ident),
                Item::Trait(item) => (&item.vis, &item.ident),
                Item::Mod(item) => {
                    let inner = item.content.as_ref().filter(|_| !is_test(&item.attrs));
                    inner.into_iter().for_each(|(_, items)| self.collect(items));
                    continue;
                }
                Item::Macro(item) => {
                    let writes = item.ident.iter().filter(|_| says_pub(item.mac.tokens.clone()));
                    self.macros.extend(writes.map(ToString::to_string));
                    continue;
                }
                _ => continue,
            };
            if is_pub(vis) { &mut self.public } else { &mut self.private }.insert(name.to_string());
        }
    }

    fn is_private(&self, name: &str) -> bool {
        self.private.contains(name) && !self.public.contains(name)
    }
}

fn list_module(module: &str, items: &[Item], names: &Names, to: &mut Vec<(String, Vec<String>)>) {
    let mut lines = Vec::new();
    for item in items {
        match item {
            Item::Mod(item) if !is_test(&item.attrs) => {
                if is_pub(&item.vis) {
                    lines.push(format!("{}pub mod {}", attributes(&item.attrs), item.ident));
                }
                if let Some((_, items)) = &item.content {
                    let inner = if module.is_empty() { String::new() } else { format!("{module}::") };
                    list_module(&format!("{inner}{}", item.ident), items, names, to);
                }
            }
            item => lines.extend(list_item(item, names)),
        }
    }
    if !lines.is_empty() {
        to.push((module.to_owned(), lines));
    }
}

/// The lines of an item, those of its parts indented.
fn list_item(item: &Item, names: &Names) -> Vec<String> {
    let line = |attrs: &[Attribute], text: String| vec![format!("{}{text}", attributes(attrs))];
    match item {
        Item::Const(item) if is_pub(&item.vis) => {
            line(&item.attrs, format!("pub const {}: {}", item.ident, tidy(&item.ty)))
        }
        Item::Static(item) if is_pub(&item.vis) => {
            line(&item.attrs, format!("pub static {}: {}", item.ident, tidy(&item.ty)))
        }
        Item::Fn(item) if is_pub(&item.vis) => line(&item.attrs, format!("pub {}", signature(&item.sig))),
        Item::Type(item) if is_pub(&item.vis) => {
            line(&item.attrs, format!("pub type {}{} = {}", item.ident, tidy(&item.generics), tidy(&item.ty)))
        }
        Item::Use(item) if is_pub(&item.vis) => line(&item.attrs, format!("pub use {}", tidy(&item.tree))),
        Item::Struct(item) if is_pub(&item.vis) => {
            let generics = format!("{}{}", tidy(&item.generics), clause(&item.generics));
            let mut lines = line(&item.attrs, format!("pub struct {}{generics}", item.ident));
            lines.extend(fields(&item.fields, true));
            lines
        }
        Item::Union(item) if is_pub(&item.vis) => line(&item.attrs, format!("pub union {}", item.ident)),
        Item::Enum(item) if is_pub(&item.vis) => {
            let generics = format!("{}{}", tidy(&item.generics), clause(&item.generics));
            let mut lines = line(&item.attrs, format!("pub enum {}{generics}", item.ident));
            for variant in &item.variants {
                lines.push(format!("    {}{}", attributes(&variant.attrs), variant.ident));
                lines.extend(fields(&variant.fields, false).into_iter().map(|field| format!("    {field}")));
            }
            lines
        }
        Item::Trait(item) if is_pub(&item.vis) => {
            let unsafety = if item.unsafety.is_some() { "unsafe " } else { "" };
            let bounds = if item.supertraits.is_empty() { "" } else { ": " };
            let generics = format!("{}{bounds}{}", tidy(&item.generics), tidy(&item.supertraits));
            let header = format!("pub {unsafety}trait {}{generics}{}", item.ident, clause(&item.generics));
            let mut lines = line(&item.attrs, header);
            for item in &item.items {
                let text = match item {
                    TraitItem::Fn(item) => {
                        let given = if item.default.is_some() { " { .. }" } else { "" };
                        format!("{}{}{given}", attributes(&item.attrs), signature(&item.sig))
                    }
                    other => tidy(other),
                };
                lines.push(format!("    {text}"));
            }
            lines
        }
        Item::Impl(item) => {
            if is_test(&item.attrs) || names.is_private(&last_name(&item.self_ty)) {
                return Vec::new();
            }
            let generics = tidy(&item.generics);
            let unsafety = if item.unsafety.is_some() { "unsafe " } else { "" };
            let subject = format!("{}{}", tidy(&item.self_ty), clause(&item.generics));
            if let Some((of, _)) = &item.trait_ {
                let of = tidy(of);
                let name = of.split('<').next().unwrap_or_default().rsplit(':').next().unwrap_or_default();
                if names.is_private(name) {
                    return Vec::new();
                }
                return line(&item.attrs, format!("{unsafety}impl{generics} {of} for {subject}"));
            }
            let mut lines = line(&item.attrs, format!("impl{generics} {subject}"));
            for item in &item.items {
                let text = match item {
                    ImplItem::Fn(item) if is_pub(&item.vis) => {
                        format!("{}pub {}", attributes(&item.attrs), signature(&item.sig))
                    }
                    ImplItem::Const(item) if is_pub(&item.vis) => {
                        format!("{}pub const {}: {}", attributes(&item.attrs), item.ident, tidy(&item.ty))
                    }
                    ImplItem::Macro(item) if names.macros.contains(&tidy(&item.mac.path)) => tidy(&item.mac),
                    _ => continue,
                };
                lines.push(format!("    {text}"));
            }
            if lines.len() > 1 { lines } else { Vec::new() }
        }
        Item::Macro(item) if !is_test(&item.attrs) => {
            let tokens = undocumented(item.mac.tokens.clone());
            match &item.ident {
                Some(name) if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) => {
                    line(&[], format!("macro_rules! {name}"))
                }
                Some(name) if says_pub(tokens.clone()) => {
                    let mut lines = line(&item.attrs, format!("macro_rules! {name}, which writes"));
                    lines.extend(written(tokens));
                    lines
                }
                None if says_pub(tokens.clone()) || names.macros.contains(&tidy(&item.mac.path)) => {
                    let mut lines = line(&item.attrs, format!("{}!", tidy(&item.mac.path)));
                    lines.extend(rows(tokens));
                    lines
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

fn is_pub(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

/// Whether it is there for tests only.
fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attribute| matches!(tidy(attribute).as_str(), "#[cfg(test)]" | "#[cfg(all(test, not(loom)))]"))
}

/// The attributes that users notice.
fn attributes(attrs: &[Attribute]) -> String {
    const NOTICED: [&str; 8] =
        ["cfg", "derive", "deprecated", "must_use", "non_exhaustive", "proc_macro", "proc_macro_derive", "repr"];
    let shown = attrs.iter().filter(|attribute| {
        let hides = tidy(attribute) == "#[doc(hidden)]";
        hides || NOTICED.iter().any(|name| attribute.path().is_ident(name))
    });
    shown.map(|attribute| format!("{} ", tidy(attribute))).collect()
}

fn clause(generics: &syn::Generics) -> String {
    generics.where_clause.as_ref().map_or_else(String::new, |clause| format!(" {}", tidy(clause)))
}

fn signature(signature: &Signature) -> String {
    tidy(signature)
}

/// Fields, each on a line of its own; of a structure only the `pub` ones.
fn fields(fields: &Fields, of_struct: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        if of_struct && !is_pub(&field.vis) {
            continue;
        }
        let vis = if of_struct { "pub " } else { "" };
        let name = field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string);
        lines.push(format!("    {}{vis}{name}: {}", attributes(&field.attrs), tidy(&field.ty)));
    }
    if of_struct && lines.len() < fields.len() {
        lines.push("    ..".to_owned());
    }
    lines
}

/// The name by which a type is defined.
fn last_name(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().map_or_else(String::new, |segment| segment.ident.to_string()),
        Type::Reference(reference) => last_name(&reference.elem),
        _ => String::new(),
    }
}

/// Removes documentation comments from tokens.
fn undocumented(tokens: TokenStream) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for tree in tokens {
        let tree = match tree {
            TokenTree::Group(group) => {
                let mut words = group.stream().into_iter().map(|tree| tree.to_string());
                let is_doc =
                    words.next().is_some_and(|word| word == "doc") && words.next().is_some_and(|word| word == "=");
                if is_doc && kept.last().is_some_and(|last| last.to_string() == "#") {
                    kept.pop();
                    continue;
                }
                Group::new(group.delimiter(), undocumented(group.stream())).into()
            }
            other => other,
        };
        kept.push(tree);
    }
    kept.into_iter().collect()
}

/// Whether there is a `pub` that is not `pub(crate)` or its like.
fn says_pub(tokens: TokenStream) -> bool {
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let found = match tree {
            TokenTree::Ident(word) => {
                let limited = |next: &TokenTree| matches!(next, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis);
                word == "pub" && !trees.peek().is_some_and(limited)
            }
            TokenTree::Group(group) => says_pub(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => false,
        };
        if found {
            return true;
        }
    }
    false
}

/// The `pub` items that a macro's definition writes, up to their bodies.
fn written(tokens: TokenStream) -> Vec<String> {
    let mut lines = Vec::new();
    let mut header: Option<TokenStream> = None;
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let limited =
            |tree: &TokenTree| matches!(tree, TokenTree::Group(of) if of.delimiter() == Delimiter::Parenthesis);
        match (&tree, header.take()) {
            (TokenTree::Ident(word), None) if word == "pub" && !trees.peek().is_some_and(limited) => {
                header = Some(tree.into());
            }
            (TokenTree::Group(body), of) if body.delimiter() == Delimiter::Brace => {
                lines.extend(of.map(|of| format!("    {}", tidy_tokens(of))));
                lines.extend(written(body.stream()));
            }
            (TokenTree::Punct(mark), Some(of)) if mark.as_char() == ';' => {
                lines.push(format!("    {}", tidy_tokens(of)))
            }
            (_, Some(mut of)) => {
                of.extend([tree]);
                header = Some(of);
            }
            (TokenTree::Group(group), None) => lines.extend(written(group.stream())),
            (_, None) => {}
        }
    }
    lines.extend(header.map(|of| format!("    {}", tidy_tokens(of))));
    lines
}

/// The rows of a table in a macro: what commas and semicolons divide, one level deep.
fn rows(tokens: TokenStream) -> Vec<String> {
    let mut lines = Vec::new();
    let mut row = TokenStream::new();
    let flush = |row: &mut TokenStream, lines: &mut Vec<String>| {
        let text = tidy_tokens(std::mem::take(row));
        if !text.is_empty() {
            lines.push(format!("    {text}"));
        }
    };
    for tree in tokens {
        match tree {
            TokenTree::Punct(mark) if matches!(mark.as_char(), ',' | ';') => flush(&mut row, &mut lines),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                flush(&mut row, &mut lines);
                lines.extend(rows(group.stream()).into_iter().map(|line| format!("    {line}")));
            }
            other => row.extend([other]),
        }
    }
    flush(&mut row, &mut lines);
    lines
}

/// Source as a person writes it, on one line.
fn tidy(part: &impl ToTokens) -> String {
    tidy_tokens(undocumented(part.to_token_stream()))
}

fn tidy_tokens(tokens: TokenStream) -> String {
    const JOINED: [(&str, &str); 29] = [
        ("\n", " "),
        (", }", " }"),
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" ,", ","),
        (" ;", ";"),
        (" :", ":"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" [", "["),
        ("[ ", "["),
        (" ]", "]"),
        (" < ", "<"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        ("& ", "&"),
        ("* ", "*"),
        ("# ", "#"),
        (" !", "!"),
        (",)", ")"),
        ("->(", "-> ("),
        (":(", ": ("),
        (",(", ", ("),
        (":[", ": ["),
        ("->[", "-> ["),
        ("mut[", "mut ["),
    ];
    let mut text = tokens.to_string();
    for (from, to) in JOINED {
        text = text.replace(from, to);
    }
    text.trim_end_matches(',').trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(source: &str) -> Vec<String> {
        let items = syn::parse_file(source).unwrap().items;
        let mut names = Names::default();
        names.collect(&items);
        let mut modules = Vec::new();
        list_module("", &items, &names, &mut modules);
        modules.into_iter().flat_map(|(_, lines)| lines).collect()
    }

    #[test]
    fn a_type_of_another_crate_that_users_cannot_name_is_told() {
        let items = |source: &str| syn::parse_file(source).unwrap().items;
        let root =
            "#[doc(hidden)] pub mod oracle; pub use bpf_b::Known; pub use bpf_maps as maps; pub use bpf_c::inner;";
        let other = "
            use bpf_a::{Asked, Renamed as Alias, Unused, inside::{self}};
            use bpf_b::Known; use bpf_maps::Map; use std::sync::Arc;
            pub struct Shown { pub a: Arc<Asked>, b: Unused, #[doc(hidden)] pub c: Unused }
            pub(crate) struct Own;
            impl Own { pub fn get(&self) -> Unused { todo!() } }
            impl Shown { pub fn get(&self, map: &Map) -> Result<Known, bpf_maps::typed::Hash> { todo!() }
                pub fn of(&self) -> bpf_c::inner::Reached { todo!() } pub(crate) fn own(&self) -> Unused { todo!() } }
            pub enum E { One(Alias), Two { at: inside::Deep } }
            pub trait T { const N: bpf_d::Direct; }";
        let hidden = "pub fn hidden() -> bpf_e::Hidden { todo!() }";
        let files = [("", root), ("other", other), ("oracle", hidden)];
        let found = unnamed(&files.map(|(module, source)| (module.to_owned(), items(source))));
        let found: Vec<String> = found.into_iter().map(|(of, name)| format!("{of}::{name}")).collect();
        assert_eq!(found, ["bpf_a::Asked", "bpf_a::Deep", "bpf_a::Renamed", "bpf_d::Direct"]);
    }

    #[test]
    fn what_users_see_is_listed_and_nothing_else() {
        let source = "
            /// Doc.
            #[derive(Debug)] #[non_exhaustive] pub struct A<T> { /// Doc.
                pub a: Vec<T>, b: u8 }
            pub enum E { One, Two { x: u8 }, Three(u16) }
            pub(crate) struct P; struct Q;
            impl<T> A<T> { /// Doc.
                pub fn new(a: &'static str) -> Result<(), E> { todo!() } fn own(&self) {} }
            impl Clone for Q { fn clone(&self) -> Q { Q } }
            impl Drop for A<u8> { fn drop(&mut self) {} }
            pub trait T: Send { const N: u8; fn must(&self); fn may(&self) {} }
            pub use crate::x::{Y, Z};
            table! { /// Doc.
                pub enum X { a = 1, b = 2 } }
            private! { a = 1 }
            macro_rules! reads { () => { /// Doc.
                #[inline] pub fn read<T>(&self) -> Option<T> { None } fn own(&self) {} pub const N: u8 = 1; } }
            impl<T> A<T> { reads!(); }
            #[cfg(test)] mod tests { pub fn t() {} }
            pub mod inner { pub const C: [u8; 2] = [1, 2]; }";
        let expected = [
            "pub const C: [u8; 2]",
            "#[derive(Debug)] #[non_exhaustive] pub struct A<T>",
            "    pub a: Vec<T>",
            "    ..",
            "pub enum E",
            "    One",
            "    Two",
            "        x: u8",
            "    Three",
            "        0: u16",
            "impl<T> A<T>",
            "    pub fn new(a: &'static str) -> Result<(), E>",
            "impl Drop for A<u8>",
            "pub trait T: Send",
            "    const N: u8;",
            "    fn must(&self)",
            "    fn may(&self) { .. }",
            "pub use crate::x::{ Y, Z }",
            "table!",
            "    pub enum X",
            "        a = 1",
            "        b = 2",
            "macro_rules! reads, which writes",
            "    pub fn read<T>(&self) -> Option<T>",
            "    pub const N: u8 = 1",
            "impl<T> A<T>",
            "    reads!()",
            "pub mod inner",
        ];
        assert_eq!(listed(source), expected);
    }
}
