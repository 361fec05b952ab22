// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"
)

// authority is a caBundle with a certificate that is valid until then.
func authority(t testing.TB, until time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-365 * 24 * time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// docs/doctor.md has a section for each check.
func TestDocumented(t *testing.T) {
	b, err := os.ReadFile("../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Checks() {
		if want := fmt.Sprintf("### %s\n\n%s: %s.", c.Code, map[Level]string{Error: "Error", Warning: "Warning"}[c.Level], c.Title); !strings.Contains(string(b), want) {
			t.Errorf("docs/doctor.md lacks\n%s", want)
		}
	}
}
