//! Which servers are trusted: those with a certificate of the usual authorities, or one that the user names.

use std::{io, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};

#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Certificates of the usual authorities, and those of `authorities` (PEM).
    pub fn new(authorities: &[u8]) -> Result<Tls, String> {
        let mut roots = RootCertStore::empty();
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        let named: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(authorities).collect();
        let named = named.map_err(|e| format!("not a PEM file: {e}"))?;
        for certificate in &named {
            roots.add(certificate.clone()).map_err(|e| format!("a certificate cannot be used: {e}"))?;
        }
        let config = match named.is_empty() {
            true => ClientConfig::builder().with_root_certificates(roots).with_no_client_auth(),
            false => {
                let usual =
                    WebPkiServerVerifier::builder(Arc::new(roots)).build().map_err(|e| e.to_string())?;
                let verifier = Arc::new(Named { usual, named });
                ClientConfig::builder()
                    .dangerous()
                    .with_custom_certificate_verifier(verifier)
                    .with_no_client_auth()
            }
        };
        Ok(Tls(Arc::new(config)))
    }

    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

/// An error of the handshake; a certificate that is not trusted in words, with the remedy.
pub fn in_words(error: io::Error) -> io::Error {
    let untrusted = |e: &Error| match e {
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Some("its certificate has expired")
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some("its certificate is for another name"),
        Error::InvalidCertificate(_) => Some(
            "its certificate is not of a known authority; name a file with the certificate that is to be trusted (runtime.server.ca_file, or --ca-file of fleet)",
        ),
        _ => None,
    };
    let known = error.get_ref().and_then(|e| e.downcast_ref::<Error>()).and_then(untrusted);
    known.map_or(error, io::Error::other)
}

/// A server whose own certificate the user named is trusted, as one that signed itself is no authority. Its name and its signatures
/// are checked as always.
#[derive(Debug)]
struct Named {
    usual: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.named.iter().any(|named| named.as_ref() == certificate.as_ref()) {
            return self.usual.verify_server_cert(certificate, others, name, ocsp, now);
        }
        let parsed = ParsedCertificate::try_from(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        verify_server_name(&parsed, name).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
