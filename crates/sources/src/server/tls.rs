//! The trusted servers: those with a certificate of the usual authorities, or one that the user names.

use std::{fmt, io, sync::Arc};

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

use llmprof_base::foreign;

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
        if named.is_empty() && !authorities.is_empty() {
            return Err("it has no certificate (PEM)".to_owned());
        }
        for certificate in &named {
            roots.add(certificate.clone()).map_err(|e| format!("a certificate cannot be used: {e}"))?;
        }
        let config = match named.is_empty() {
            true => ClientConfig::builder().with_root_certificates(roots).with_no_client_auth(),
            false => {
                let usual =
                    WebPkiServerVerifier::builder(Arc::new(roots)).build().map_err(|e| e.to_string())?;
                let verifier = Arc::new(NamedCertificates { usual, named });
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

/// Why the certificate of a server is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untrusted {
    Expired,
    NotYetValid,
    /// The names for which it was issued.
    OtherName(Vec<String>),
    UnknownAuthority,
    /// The message of the library.
    Other(String),
}

impl Untrusted {
    fn from_error(error: &CertificateError) -> Untrusted {
        use CertificateError as E;
        match error {
            E::Expired | E::ExpiredContext { .. } => Untrusted::Expired,
            E::NotValidYet | E::NotValidYetContext { .. } => Untrusted::NotYetValid,
            E::NotValidForName => Untrusted::OtherName(Vec::new()),
            E::NotValidForNameContext { presented, .. } => {
                // Written as `DnsName("box")`.
                let plain = |name: &String| {
                    let inside = name.split_once('(').map_or(name.as_str(), |(_, rest)| rest);
                    foreign::line(inside.trim_end_matches(')').trim_matches('"'), 80)
                };
                Untrusted::OtherName(presented.iter().take(4).map(plain).collect())
            }
            E::UnknownIssuer => Untrusted::UnknownAuthority,
            other => Untrusted::Other(foreign::line(&other.to_string(), 200)),
        }
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Expired => f.write_str("its certificate has expired"),
            Untrusted::NotYetValid => f.write_str("its certificate is not valid yet"),
            Untrusted::OtherName(names) if names.is_empty() => {
                f.write_str("its certificate is for another name")
            }
            Untrusted::OtherName(names) => write!(f, "its certificate is for {} only", names.join(", ")),
            Untrusted::UnknownAuthority => f.write_str("its certificate is not of a known authority"),
            Untrusted::Other(words) => write!(f, "its certificate cannot be used: {words}"),
        }
    }
}

impl std::error::Error for Untrusted {}

/// An error of the handshake; a rejected certificate becomes [`Untrusted`].
pub fn in_words(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(cause)) => io::Error::other(Untrusted::from_error(cause)),
        _ => error,
    }
}

/// A server whose own certificate the user named is trusted, although a self-signed certificate is not an authority.
/// Its name, its dates and its signatures are still checked.
#[derive(Debug)]
struct NamedCertificates {
    usual: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for NamedCertificates {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
        let found = self.usual.verify_server_cert(certificate, others, name, ocsp, now);
        match &found {
            Ok(_) => return found,
            // Dates are checked before the issuer.
            Err(Error::InvalidCertificate(
                Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
            )) => return found,
            Err(_) if !self.named.iter().any(|named| named.as_ref() == certificate.as_ref()) => return found,
            Err(_) => {}
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
