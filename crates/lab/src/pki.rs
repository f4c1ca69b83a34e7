//! Keys and certificates of one lab.
//!
//! One CA per lab signs the API server's certificate and any number of client certificates; the CA's key stays in the
//! lab's folder (0600), so that every process that attaches can make a user. A client certificate's common name is
//! the user and its organisations are the groups (Kubernetes documentation, "X509 client certificates"). Knows nothing
//! of kubeconfigs. Called by control_plane and servers.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::LabError;
use crate::kubeconfig::write_private;

/// The service address of the API server inside 10.0.0.0/24, the lab's service range.
const SERVICE_ADDRESS: &str = "10.0.0.1";

/// The files of one lab's keys and certificates.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    folder: PathBuf,
}

/// A client certificate and its key, PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pki {
    pub(crate) fn at(lab: &Path) -> Self {
        Self { folder: lab.join("pki") }
    }

    /// Makes the CA, the API server's certificate and the key that signs service account tokens.
    pub(crate) fn create(lab: &Path) -> Result<Self, LabError> {
        let pki = Self::at(lab);
        std::fs::create_dir(&pki.folder).map_err(LabError::io("create the folder", &pki.folder))?;
        let key = new_key("the lab's CA")?;
        let certificate = ca_params()?.self_signed(&key).map_err(failed("the lab's CA"))?;
        write_private(&pki.ca(), &certificate.pem())?;
        write_private(&pki.ca_key(), &key.serialize_pem())?;

        let names = ["localhost", "127.0.0.1", SERVICE_ADDRESS, "kubernetes.default.svc"].map(str::to_owned);
        let mut params = CertificateParams::new(names).map_err(failed("the API server"))?;
        params.distinguished_name = name("kube-apiserver", &[]);
        let server = pki.sign(params, ExtendedKeyUsagePurpose::ServerAuth, "the API server")?;
        write_private(&pki.server(), &server.certificate)?;
        write_private(&pki.server_key(), &server.key)?;

        let tokens = new_key("service account tokens")?;
        write_private(&pki.token_key(), &tokens.serialize_pem())?;
        write_private(&pki.token_public_key(), &tokens.public_key_pem())?;
        Ok(pki)
    }

    /// A client certificate for a user. A certificate of this kind carries at most two groups.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity, LabError> {
        if groups.len() > 2 {
            return Err(LabError::Certificate {
                subject: user.to_owned(),
                why: "at most two groups fit; bind further roles to the user itself".to_owned(),
            });
        }
        let mut params = CertificateParams::new([]).map_err(failed(user))?;
        params.distinguished_name = name(user, groups);
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth, user)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        subject: &str,
    ) -> Result<Identity, LabError> {
        let file = self.ca_key();
        let text = std::fs::read_to_string(&file).map_err(LabError::io("read", &file))?;
        let issuer = Issuer::new(ca_params()?, KeyPair::from_pem(&text).map_err(failed("the lab's CA"))?);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = new_key(subject)?;
        let certificate = params.signed_by(&key, &issuer).map_err(failed(subject))?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }
    fn ca_key(&self) -> PathBuf {
        self.folder.join("ca.key")
    }
    pub(crate) fn server(&self) -> PathBuf {
        self.folder.join("apiserver.crt")
    }
    pub(crate) fn server_key(&self) -> PathBuf {
        self.folder.join("apiserver.key")
    }
    pub(crate) fn token_key(&self) -> PathBuf {
        self.folder.join("service-accounts.key")
    }
    pub(crate) fn token_public_key(&self) -> PathBuf {
        self.folder.join("service-accounts.pub")
    }
}

/// The CA's parameters: the same in every lab and every process, so that the key alone is enough to sign again.
fn ca_params() -> Result<CertificateParams, LabError> {
    let mut params = CertificateParams::new([]).map_err(failed("the lab's CA"))?;
    params.distinguished_name = name("kubesentry-lab", &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1));
    Ok(params)
}

fn name(user: &str, groups: &[&str]) -> DistinguishedName {
    /// `id-at-organizationName`, X.520. rcgen keeps one value per type, and its own type for this number and a custom
    /// one with the same number are two.
    const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];
    let mut name = DistinguishedName::new();
    for (group, kind) in
        groups.iter().zip([DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())])
    {
        name.push(kind, *group);
    }
    name.push(DnType::CommonName, user);
    name
}

fn new_key(subject: &str) -> Result<KeyPair, LabError> {
    KeyPair::generate().map_err(failed(subject))
}

fn failed(subject: &str) -> impl FnOnce(rcgen::Error) -> LabError {
    let subject = subject.to_owned();
    move |e| LabError::Certificate { subject, why: e.to_string() }
}
