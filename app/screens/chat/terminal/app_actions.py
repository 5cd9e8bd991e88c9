"""The chat screen's actions on the app itself: settings, themes, keys by letter, help, the shell."""

from app.screens.chat.tab_actions import TabActions


class AppActions(TabActions):
    """Opens the dialogs over the app's own settings, and follows what is changed there."""

    def action_settings(self) -> None:
        """Look through all settings and change them."""
        from app.screens.dialogs.preferences.settings import SettingsScreen

        context = self.context
        names = [theme.name for theme in context.looks.choices()]
        self.app.push_screen(SettingsScreen(context.settings, context.preferences.change, names))

    def action_choose_theme(self) -> None:
        """Choose among the themes, each shown as it is highlighted."""
        from app.screens.dialogs.preferences.themes import ThemesScreen

        context = self.context
        screen = ThemesScreen(context.looks.choices(), context.settings.general.theme, context.looks.show)
        self.ask(screen, lambda name: context.preferences.change("general", "theme", name))

    def action_leader(self) -> None:
        """Show every action by its letters."""
        from app.screens.dialogs.which_key import WhichKey

        def chosen(name: str) -> None:
            self.call_later(self.run_action, name)

        self.ask(WhichKey(self.context.settings.keys), chosen)

    def action_palette(self) -> None:
        """Search every command."""
        self.app.action_command_palette()

    def action_help(self) -> None:
        """Show all keys."""
        from app.screens.dialogs.help import HelpScreen

        general, keys = self.context.settings.general, self.context.settings.keys
        screen = HelpScreen(
            keys,
            writing=general.writing_keys,
            others=general.other_enter_keys[1:],
            warnings=self.context.warnings,
        )
        self.app.push_screen(screen)

    def action_suspend(self) -> None:
        """Give the terminal back to the shell until the reader comes back."""
        self.keep_draft()
        self.app.action_suspend_process()

    def settings_changed(self) -> None:
        """Show what the settings say now."""
        self.set_enter()
        settings = self.context.settings
        self.composer.cursor_blink = settings.terminal.motion == "full"
        self.context.services.stop_repeats = settings.general.stop_repeats
        self.deck.set_text_width(settings.general.text_width)
        if self.tabs.sessions:
            self.show_welcome()
        self.beat.settings_changed()
