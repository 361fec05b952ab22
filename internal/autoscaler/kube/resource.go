// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Resource finds a resource of an API group by its name in the singular or the plural, in
// the group's preferred version. It asks the API server each time, so that it notices
// CRDs that come and go. found is false if the API server does not serve the resource.
func (c *Clients) Resource(ctx context.Context, group, name string) (r metav1.APIResource, found bool, err error) {
	if len(validation.IsDNS1123Subdomain(group)) > 0 {
		return r, false, nil
	}
	var g metav1.APIGroup
	if err := c.discover(ctx, &g, "/apis", group); err != nil {
		return r, false, ignoreNotFound(err)
	}
	var list metav1.APIResourceList
	if err := c.discover(ctx, &list, "/apis", group, g.PreferredVersion.Version); err != nil {
		return r, false, ignoreNotFound(err)
	}
	for _, r := range list.APIResources {
		if (r.Name == name || r.SingularName == name) && !strings.Contains(r.Name, "/") {
			r.Group = group
			return r, true, nil
		}
	}
	return r, false, nil
}

// discover reads a discovery document.
func (c *Clients) discover(ctx context.Context, into any, path ...string) error {
	b, err := c.Set.Discovery().RESTClient().Get().AbsPath(path...).DoRaw(ctx)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("discovery of %s: %w", strings.Join(path[1:], "/"), err)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
