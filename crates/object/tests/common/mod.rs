//! Builds ELF objects piece by piece, so that a test can state the single error in its object.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) const PROGBITS: u32 = 1;
pub(crate) const NOBITS: u32 = 8;
/// SHF_ALLOC | SHF_EXECINSTR
pub(crate) const CODE: u64 = 6;
/// SHF_ALLOC | SHF_WRITE
pub(crate) const DATA: u64 = 3;

/// STB_GLOBAL, STT_FUNC
pub(crate) const FUNC: u8 = 0x12;
/// STB_LOCAL, STT_FUNC
pub(crate) const STATIC_FUNC: u8 = 0x02;
/// STB_GLOBAL, STT_OBJECT
pub(crate) const OBJECT: u8 = 0x11;
/// STB_GLOBAL, STT_NOTYPE
pub(crate) const NOTYPE: u8 = 0x10;

/// `r0 = 0; exit`
pub(crate) const RETURN_0: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
/// `r0 = 1; exit`
pub(crate) const RETURN_1: [u8; 16] = [0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
/// `r1 = 0 ll`
pub(crate) const LOAD: [u8; 16] = [0x18, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// `call` of a subprogram.
pub(crate) fn call(imm: i32) -> [u8; 8] {
    let [a, b, c, d] = imm.to_le_bytes();
    [0x85, 0x10, 0, 0, a, b, c, d]
}

struct Section {
    name: String,
    ty: u32,
    flags: u64,
    data: Vec<u8>,
    size: u64,
    info: u32,
}

/// An object under construction, with section and symbol 0.
pub(crate) struct Elf {
    sections: Vec<Section>,
    symbols: Vec<u8>,
    strings: Vec<u8>,
    /// Section indices of symbols, for SHT_SYMTAB_SHNDX.
    far: Vec<u32>,
}

impl Elf {
    pub(crate) fn new() -> Elf {
        let null = Section { name: String::new(), ty: 0, flags: 0, data: Vec::new(), size: 0, info: 0 };
        Elf { sections: vec![null], symbols: vec![0; 24], strings: vec![0], far: Vec::new() }
    }

    pub(crate) fn section(&mut self, name: &str, ty: u32, flags: u64, data: &[u8]) -> u16 {
        let (data, size) = (data.to_vec(), data.len() as u64);
        self.sections.push(Section { name: name.to_owned(), ty, flags, data, size, info: 0 });
        (self.sections.len() - 1) as u16
    }

    pub(crate) fn code(&mut self, name: &str, code: &[u8]) -> u16 {
        self.section(name, PROGBITS, CODE, code)
    }

    pub(crate) fn bss(&mut self, size: u64) -> u16 {
        let section = self.section(".bss", NOBITS, DATA, &[]);
        self.sections[usize::from(section)].size = size;
        section
    }

    pub(crate) fn symbol(&mut self, name: &str, section: u16, info: u8, value: u64, size: u64) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend(name.as_bytes());
        self.strings.push(0);
        self.symbol_at(at, section, info, value, size)
    }

    /// Adds a symbol whose section index is in SHT_SYMTAB_SHNDX.
    pub(crate) fn far_symbol(&mut self, name: &str, section: u16, info: u8, value: u64, size: u64) -> u32 {
        let index = self.symbol(name, 0xffff, info, value, size);
        self.far.resize(index as usize, 0);
        self.far.push(section.into());
        index
    }

    /// Adds a symbol whose name is at an offset of the string table.
    pub(crate) fn symbol_at(&mut self, name: u32, section: u16, info: u8, value: u64, size: u64) -> u32 {
        self.symbols.extend(name.to_le_bytes());
        self.symbols.extend([info, 0]);
        self.symbols.extend(section.to_le_bytes());
        self.symbols.extend(value.to_le_bytes());
        self.symbols.extend(size.to_le_bytes());
        (self.symbols.len() / 24 - 1) as u32
    }

    /// Adds raw bytes to the symbols' string table.
    pub(crate) fn strings(&mut self, bytes: &[u8]) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend(bytes);
        at
    }

    /// Adds a relocation section: `(offset, symbol, type)`.
    pub(crate) fn rel(&mut self, target: u16, rels: &[(u64, u32, u32)]) {
        let mut data = Vec::new();
        for &(offset, symbol, ty) in rels {
            data.extend(offset.to_le_bytes());
            data.extend((u64::from(symbol) << 32 | u64::from(ty)).to_le_bytes());
        }
        let name = format!(".rel{}", self.sections[usize::from(target)].name);
        let section = self.section(&name, 9, 0, &data);
        self.sections[usize::from(section)].info = target.into();
    }

    pub(crate) fn set_type(&mut self, section: u16, ty: u32) {
        self.sections[usize::from(section)].ty = ty;
    }

    pub(crate) fn build(mut self) -> Vec<u8> {
        let (symbols, strings) = (std::mem::take(&mut self.symbols), std::mem::take(&mut self.strings));
        let strtab = self.section(".strtab", 3, 0, &strings);
        let symtab = self.section(".symtab", 2, 0, &symbols);
        if !self.far.is_empty() {
            let words: Vec<u8> = self.far.iter().flat_map(|index| index.to_le_bytes()).collect();
            self.section(".symtab_shndx", 18, 0, &words);
        }
        let mut names = vec![];
        let mut offsets = vec![];
        for section in &self.sections {
            offsets.push(names.len() as u32);
            names.extend(section.name.as_bytes());
            names.push(0);
        }
        offsets.push(names.len() as u32);
        names.extend(b".shstrtab\0");
        let shstrtab = self.section(".shstrtab", 3, 0, &names);

        let mut file = vec![0; 64];
        let mut headers = Vec::new();
        for (index, (section, name)) in self.sections.iter().zip(offsets).enumerate() {
            file.resize(file.len().next_multiple_of(8), 0);
            let link = match section.ty {
                2 => u32::from(strtab),
                9 | 18 => u32::from(symtab),
                _ => 0,
            };
            let entry: u64 = match section.ty {
                2 => 24,
                9 => 16,
                _ => 0,
            };
            headers.extend(name.to_le_bytes());
            headers.extend(section.ty.to_le_bytes());
            headers.extend(section.flags.to_le_bytes());
            headers.extend(0u64.to_le_bytes());
            headers.extend((if index == 0 { 0 } else { file.len() as u64 }).to_le_bytes());
            headers.extend(section.size.to_le_bytes());
            headers.extend(link.to_le_bytes());
            headers.extend(section.info.to_le_bytes());
            headers.extend(8u64.to_le_bytes());
            headers.extend(entry.to_le_bytes());
            file.extend(&section.data);
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let table = file.len() as u64;
        file.extend(&headers);

        file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        file[16..18].copy_from_slice(&1u16.to_le_bytes());
        file[18..20].copy_from_slice(&247u16.to_le_bytes());
        file[20..24].copy_from_slice(&1u32.to_le_bytes());
        file[40..48].copy_from_slice(&table.to_le_bytes());
        file[52..54].copy_from_slice(&64u16.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&(self.sections.len() as u16).to_le_bytes());
        file[62..64].copy_from_slice(&shstrtab.to_le_bytes());
        file
    }
}

/// A `.BTF` section under construction.
pub(crate) struct Btf {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Btf {
    pub(crate) fn new() -> Btf {
        Btf { types: Vec::new(), strings: vec![0], count: 0 }
    }

    pub(crate) fn string(&mut self, text: &str) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        at
    }

    /// Adds a type: its name, kind, number of items, size or type, and the words that follow. Returns its id.
    pub(crate) fn ty(&mut self, name: &str, kind: u32, len: u32, size: u32, words: &[u32]) -> u32 {
        let name = if name.is_empty() { 0 } else { self.string(name) };
        for word in [name, kind << 24 | len, size].iter().chain(words) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    pub(crate) fn int(&mut self) -> u32 {
        self.ty("int", 1, 0, 4, &[32])
    }

    pub(crate) fn ptr(&mut self, to: u32) -> u32 {
        self.ty("", 2, 0, to, &[])
    }

    pub(crate) fn array(&mut self, elem: u32, len: u32) -> u32 {
        self.ty("", 3, 0, 0, &[elem, elem, len])
    }

    /// `int (*)[n]`
    pub(crate) fn number(&mut self, int: u32, n: u32) -> u32 {
        let array = self.array(int, n);
        self.ptr(array)
    }

    /// Adds a structure of pointers.
    pub(crate) fn structure(&mut self, members: &[(&str, u32)]) -> u32 {
        let mut words = Vec::new();
        for (i, &(name, ty)) in members.iter().enumerate() {
            words.extend([self.string(name), ty, 64 * i as u32]);
        }
        self.ty("", 4, members.len() as u32, 8 * members.len() as u32, &words)
    }

    /// Adds the variables of a section: `(name, type)`, of eight bytes each.
    pub(crate) fn datasec(&mut self, section: &str, vars: &[(&str, u32)]) -> u32 {
        let mut words = Vec::new();
        for (i, &(name, ty)) in vars.iter().enumerate() {
            words.extend([self.ty(name, 14, 0, ty, &[1]), 8 * i as u32, 8]);
        }
        self.ty(section, 15, vars.len() as u32, 0, &words)
    }

    pub(crate) fn build(mut self) -> Vec<u8> {
        self.string("");
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, strings] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.types);
        bytes.extend(self.strings);
        bytes
    }
}

/// A `.BTF.ext` with CO-RE relocations of one section: slot, type, access string, kind.
pub(crate) fn core_relocations(section: u32, records: &[[u32; 4]]) -> Vec<u8> {
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    let len = 12 + 16 * records.len() as u32;
    let header = [32, 0, 0, 0, 0, 0, len];
    for word in header.into_iter().chain([16, section, records.len() as u32]).chain(records.iter().flatten().copied()) {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}
