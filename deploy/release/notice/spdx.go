// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Subject is what an SPDX document describes.
type Subject struct {
	Name, Version string
	PURL          string
	Created       time.Time
	Components    []Component
}

// document is an SPDX document, version 2.3.
type document struct {
	Version     string `json:"spdxVersion"`
	DataLicense string `json:"dataLicense"`
	element
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// element is what SPDX documents and packages have in common.
type element struct {
	ID   string `json:"SPDXID"`
	Name string `json:"name"`
}

type spdxPackage struct {
	element
	Version          string      `json:"versionInfo"`
	Download         string      `json:"downloadLocation"`
	FilesAnalyzed    bool        `json:"filesAnalyzed"`
	SourceInfo       string      `json:"sourceInfo,omitempty"`
	LicenseConcluded string      `json:"licenseConcluded"`
	LicenseDeclared  string      `json:"licenseDeclared"`
	Copyright        string      `json:"copyrightText"`
	Checksums        []checksum  `json:"checksums,omitempty"`
	References       []reference `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	noAssertion = "NOASSERTION"
	projectURL  = "https://github.com/gpupilot/gpupilot"
)

// SPDX returns the SPDX 2.3 document of s as JSON. Its namespace is made of its content.
func SPDX(s Subject) ([]byte, error) {
	doc := document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", element: element{ID: "SPDXRef-DOCUMENT", Name: s.Name + "-" + s.Version},
		Creation: creation{Created: s.Created.UTC().Format(time.RFC3339), Creators: []string{"Organization: GPUPilot", "Tool: gpupilot-release"}},
	}
	root := encode(0, Component{Name: s.Name, Version: s.Version, PURL: s.PURL, License: "Apache-2.0"})
	root.Download = "git+" + projectURL
	doc.Packages = append(doc.Packages, root)
	doc.Relationships = append(doc.Relationships, relationship{doc.ID, "DESCRIBES", root.ID})
	for i, c := range s.Components {
		p := encode(i+1, c)
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, relationship{root.ID, "CONTAINS", p.ID})
	}
	content, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode the SPDX document: %w", err)
	}
	sum := sha256.Sum256(content)
	doc.Namespace = fmt.Sprintf("%s/spdx/%s/%s", projectURL, s.Name, hex.EncodeToString(sum[:16]))
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("encode the SPDX document: %w", err)
	}
	return out.Bytes(), nil
}

func encode(i int, c Component) spdxPackage {
	p := spdxPackage{
		element: element{ID: fmt.Sprintf("SPDXRef-Package-%d", i), Name: c.Name}, Version: c.Version, Download: noAssertion, SourceInfo: c.Source,
		LicenseConcluded: noAssertion, LicenseDeclared: cmp.Or(c.License, noAssertion), Copyright: noAssertion,
	}
	if c.PURL != "" {
		p.References = []reference{{"PACKAGE-MANAGER", "purl", c.PURL}}
	}
	if c.SHA256 != "" {
		p.Checksums = []checksum{{"SHA256", c.SHA256}}
	}
	return p
}
