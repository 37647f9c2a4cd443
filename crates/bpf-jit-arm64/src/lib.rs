//! arm64 backend
