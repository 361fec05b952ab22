// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
)

// APIVersion is one version of an API group that our Service serves.
type APIVersion struct {
	Group, Version string
	Priority       int32 // among the group's versions; the highest is preferred
}

// CustomMetrics returns the versions of custom.metrics.k8s.io. v1beta2 is preferred.
func CustomMetrics() []APIVersion {
	return []APIVersion{
		{Group: "custom.metrics.k8s.io", Version: "v1beta2", Priority: 200},
		{Group: "custom.metrics.k8s.io", Version: "v1beta1", Priority: 100},
	}
}

// ExternalMetrics returns the version of external.metrics.k8s.io.
func ExternalMetrics() []APIVersion {
	return []APIVersion{{Group: "external.metrics.k8s.io", Version: "v1beta1", Priority: 100}}
}

// APIs returns the versions of both groups, or of one.
func APIs(custom, external bool) (out []APIVersion) {
	if custom {
		out = CustomMetrics()
	}
	if external {
		out = append(out, ExternalMetrics()...)
	}
	return out
}

// Paths returns the paths of the discovery of APIs.
func Paths(apis []APIVersion) (out []string) {
	for _, api := range apis {
		out = append(out, "/apis/"+api.Group+"/"+api.Version)
	}
	return out
}

// OwnerRole is the ClusterRole that lets the controller create APIServices. It owns those,
// because it is deleted with the installation.
const OwnerRole = "gpupilot-controller:apiservices"

// groupPriority is the usual priority of metrics APIs, which share no resource names
// with other groups.
const groupPriority = 100

// APIServiceConfig holds the settings of EnsureAPIServices.
type APIServiceConfig struct {
	APIs               []APIVersion
	Namespace, Service string
	Port               int32             // of the Service
	CABundle           []byte            // PEM; empty: another program such as cert-manager writes it, or a public authority signed the certificate
	CreateIfMissing    bool              // false: a missing APIService is an error
	Labels             map[string]string // of a new APIService
	// Of a new APIService; may be nil: an object of the cluster that owns it, and the Service. Nothing is created after one
	// of them was deleted. What was created just before is deleted after the owner by the garbage collector.
	Owner, ServiceOwner *kube.Owner
}

// ErrOtherService means that the APIService of an API belongs to another Service, or that
// of another version of its group. Nothing is changed.
var ErrOtherService = errors.New("served by another service")

// EnsureAPIServices sets the CA bundle of each APIService, and creates missing ones if
// CreateIfMissing is set, except where another Service has a version of the group: clients
// would prefer our version and no longer ask that Service. It changes only the caBundle of an existing APIService, and
// insecureSkipTLSVerify, which is incompatible with one. It joins the errors of all
// APIs, such as ErrOtherService.
func EnsureAPIServices(ctx context.Context, client apiregistration.APIServiceInterface, cfg APIServiceConfig) error {
	var errs []error
	for _, api := range cfg.APIs {
		if err := ensureAPIService(ctx, client, &cfg, api); err != nil {
			errs = append(errs, fmt.Errorf("APIService %s.%s: %w", api.Version, api.Group, err))
		}
	}
	return errors.Join(errs...)
}

// ensureAttempts bounds the attempts of a write after conflicts: the API server writes
// the status whenever the availability changes.
const ensureAttempts = 5

func ensureAPIService(ctx context.Context, client apiregistration.APIServiceInterface, cfg *APIServiceConfig, api APIVersion) error {
	var err error
	for range ensureAttempts {
		if err = ensureOnce(ctx, client, cfg, api); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return err
}

func ensureOnce(ctx context.Context, client apiregistration.APIServiceInterface, cfg *APIServiceConfig, api APIVersion) error {
	name := api.Version + "." + api.Group
	have, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && cfg.CreateIfMissing {
		if err := checkGroup(ctx, client, cfg, api); err != nil {
			return err
		}
		if _, err := cfg.ServiceOwner.References(ctx); errors.Is(err, kube.ErrUninstalled) {
			return err
		}
		service := newAPIService(cfg, api)
		if service.OwnerReferences, err = cfg.Owner.References(ctx); err != nil {
			return err
		}
		_, err = client.Create(ctx, service, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if other := cfg.otherService(have); other != "" {
		return fmt.Errorf("%w: %s, not %s/%s; not changed", ErrOtherService, other, cfg.Namespace, cfg.Service)
	}
	if len(cfg.CABundle) == 0 || bytes.Equal(have.Spec.CABundle, cfg.CABundle) {
		return nil
	}
	patch, err := caBundlePatch(have, cfg.CABundle)
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// otherService names the Service of an APIService if it is not ours; empty: it is.
func (cfg *APIServiceConfig) otherService(have *apiregistrationv1.APIService) string {
	switch s := have.Spec.Service; {
	case s == nil:
		return "the API server itself"
	case s.Namespace != cfg.Namespace || s.Name != cfg.Service:
		return s.Namespace + "/" + s.Name
	}
	return ""
}

// checkGroup returns an error if another Service has another version of the API's group.
func checkGroup(ctx context.Context, client apiregistration.APIServiceInterface, cfg *APIServiceConfig, api APIVersion) error {
	for _, a := range cfg.APIs {
		if a.Group != api.Group || a.Version == api.Version {
			continue
		}
		have, err := client.Get(ctx, a.Version+"."+a.Group, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if other := cfg.otherService(have); other != "" {
			return fmt.Errorf("%w: %s serves %s of the group; not registered, because clients would no longer ask it", ErrOtherService, other, a.Version)
		}
	}
	return nil
}

// caBundlePatch returns a merge patch for the resource version that was read.
func caBundlePatch(have *apiregistrationv1.APIService, bundle []byte) ([]byte, error) {
	spec := map[string]any{"caBundle": bundle}
	if have.Spec.InsecureSkipTLSVerify {
		spec["insecureSkipTLSVerify"] = false
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": have.ResourceVersion},
		"spec":     spec,
	})
}

func newAPIService(cfg *APIServiceConfig, api APIVersion) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: api.Version + "." + api.Group, Labels: cfg.Labels},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: api.Group, Version: api.Version,
			Service:  &apiregistrationv1.ServiceReference{Namespace: cfg.Namespace, Name: cfg.Service, Port: &cfg.Port},
			CABundle: cfg.CABundle, GroupPriorityMinimum: groupPriority, VersionPriority: api.Priority,
		},
	}
}

// The intervals between checks of the APIServices: after success, since other users
// may change them, and after a failure.
const (
	keepEvery  = time.Minute
	retryEvery = 5 * time.Second
)

// KeepAPIServices runs EnsureAPIServices with the CA bundle of certs whenever it
// changes and once a minute, until ctx is done. Only the leader runs it. It logs the
// first of equal consecutive failures.
func KeepAPIServices(ctx context.Context, client apiregistration.APIServiceInterface, cfg APIServiceConfig, certs *Certs, log *slog.Logger) {
	logged := ""
	for {
		changed, wait := certs.Changed(), keepEvery
		if cfg.CABundle = certs.CABundle(); len(cfg.CABundle) > 0 {
			err := EnsureAPIServices(ctx, client, cfg)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				if wait = retryEvery; logged != err.Error() {
					logged = err.Error()
					log.Warn("cannot register the metrics APIs", "err", err)
				}
			case logged != "":
				logged = ""
				log.Info("metrics APIs are registered")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(wait):
		}
	}
}
