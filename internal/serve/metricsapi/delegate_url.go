// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DelegateURL returns the URL of NAMESPACE/SERVICE[:PORT], or of https://HOST[:PORT].
func DelegateURL(s string) (string, error) {
	if strings.HasPrefix(s, "https://") {
		return s, nil
	}
	namespace, service, ok := strings.Cut(s, "/")
	name, port, hasPort := strings.Cut(service, ":")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1035Label(name)) > 0 {
		return "", errors.New("want NAMESPACE/SERVICE[:PORT] or https://HOST[:PORT], such as monitoring/prometheus-adapter")
	}
	if !hasPort {
		port = "443"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("%q is not a port", port)
	}
	return "https://" + name + "." + namespace + ".svc:" + port, nil
}

// IsDelegate checks that a value is what DelegateURL reads, or empty.
func IsDelegate(p *string) func() error {
	return func() error {
		if *p == "" {
			return nil
		}
		_, err := DelegateURL(*p)
		return err
	}
}
