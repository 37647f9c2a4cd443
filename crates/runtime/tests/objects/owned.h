// SPDX-License-Identifier: MIT OR Apache-2.0
/* Objects that programs own: the kernel's names, which the headers of distributions do not have yet. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct bpf_list_head {
	__u64 __opaque[2];
} __attribute__((aligned(8)));
struct bpf_list_node {
	__u64 __opaque[3];
} __attribute__((aligned(8)));
struct bpf_rb_root {
	__u64 __opaque[2];
} __attribute__((aligned(8)));
struct bpf_rb_node {
	__u64 __opaque[4];
} __attribute__((aligned(8)));
struct bpf_refcount {
	__u32 __opaque[1];
} __attribute__((aligned(4)));

#define __percpu_kptr __attribute__((btf_type_tag("percpu_kptr")))
#define __contains(type, node) __attribute__((btf_decl_tag("contains:" #type ":" #node)))
#define private(name) SEC(".data." #name) __hidden __attribute__((aligned(8)))

extern void *bpf_obj_new_impl(__u64 type, void *meta) __ksym;
extern void bpf_obj_drop_impl(void *object, void *meta) __ksym;
extern void *bpf_percpu_obj_new_impl(__u64 type, void *meta) __ksym;
extern void bpf_percpu_obj_drop_impl(void *object, void *meta) __ksym;
extern void *bpf_refcount_acquire_impl(void *object, void *meta) __ksym;
extern int bpf_list_push_front_impl(struct bpf_list_head *head, struct bpf_list_node *node, void *meta, __u64 off) __ksym;
extern int bpf_list_push_back_impl(struct bpf_list_head *head, struct bpf_list_node *node, void *meta, __u64 off) __ksym;
extern struct bpf_list_node *bpf_list_pop_front(struct bpf_list_head *head) __ksym;
extern struct bpf_list_node *bpf_list_pop_back(struct bpf_list_head *head) __ksym;
extern struct bpf_list_node *bpf_list_front(struct bpf_list_head *head) __ksym;
extern struct bpf_list_node *bpf_list_back(struct bpf_list_head *head) __ksym;
extern int bpf_rbtree_add_impl(struct bpf_rb_root *root, struct bpf_rb_node *node,
			       _Bool (*less)(struct bpf_rb_node *, const struct bpf_rb_node *), void *meta,
			       __u64 off) __ksym;
extern struct bpf_rb_node *bpf_rbtree_remove(struct bpf_rb_root *root, struct bpf_rb_node *node) __ksym;
extern struct bpf_rb_node *bpf_rbtree_first(struct bpf_rb_root *root) __ksym;
extern struct bpf_rb_node *bpf_rbtree_root(struct bpf_rb_root *root) __ksym;
extern struct bpf_rb_node *bpf_rbtree_left(struct bpf_rb_root *root, struct bpf_rb_node *node) __ksym;
extern struct bpf_rb_node *bpf_rbtree_right(struct bpf_rb_root *root, struct bpf_rb_node *node) __ksym;

#define bpf_obj_new(type) ((type *)bpf_obj_new_impl(bpf_core_type_id_local(type), 0))
#define bpf_obj_drop(object) bpf_obj_drop_impl(object, 0)
#define bpf_percpu_obj_new(type) ((type __percpu_kptr *)bpf_percpu_obj_new_impl(bpf_core_type_id_local(type), 0))
#define bpf_percpu_obj_drop(object) bpf_percpu_obj_drop_impl(object, 0)
#define bpf_refcount_acquire(object) bpf_refcount_acquire_impl(object, 0)
#define bpf_list_push_front(head, node) bpf_list_push_front_impl(head, node, 0, 0)
#define bpf_list_push_back(head, node) bpf_list_push_back_impl(head, node, 0, 0)
#define bpf_rbtree_add(root, node, less) bpf_rbtree_add_impl(root, node, less, 0, 0)
