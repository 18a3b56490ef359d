from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    name = "deployments"
    label = "deployments"

    def ready(self) -> None:
        from deployments import events, labels, model_use, run_secrets, runtime_use, setting_words  # noqa: F401  (events connects the receivers)
        from deployments.gateway.names import names
        from models_catalog import uses as model_uses
        from panel.accounts import reach, secret_store
        from panel.audit import codes
        from panel.fleet.labels import register
        from panel.fleet.runtimes import users as runtime_users

        register(labels.of_jobs)
        codes.register("run.", "deployment.", say=setting_words.say)
        codes.register_names(setting_words.of_record)
        reach.register(names)
        secret_store.register(run_secrets.users)
        runtime_users.register(runtime_use.of_runtimes)
        model_uses.register(model_use.of_artifacts, model_use.few, model_use.ever_used)
