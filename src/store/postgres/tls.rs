//! Encrypted connections: the server's certificate is always verified.

use std::fs;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::url::Trust;

/// Where distributions keep the certificates that the machine trusts, all in one file.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(super) fn connector(trust: &Trust) -> Result<MakeRustlsConnect, String> {
    let file = match trust {
        Trust::File(path) => path.clone(),
        Trust::System => BUNDLES
            .iter()
            .find(|path| fs::exists(path).unwrap_or(false))
            .ok_or("no certificates to trust: install the package ca-certificates, or give sslrootcert=FILE")?
            .into(),
    };
    let wrong = |cause: &dyn std::fmt::Display| format!("{}: {cause}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&file).map_err(|error| wrong(&error))? {
        // A bundle may hold one that is not understood; the others still serve.
        let _not_understood = certificate.map(|certificate| roots.add(certificate));
    }
    if roots.is_empty() {
        return Err(wrong(&"it has no certificate"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
